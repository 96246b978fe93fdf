# Read by gdb after the first start of a program (debugging.py). From a second `run` on, gdb reads the symbols of every
# library, so that it finds the breakpoint of the kernel again.
define hook-run
  set auto-solib-add on
end
