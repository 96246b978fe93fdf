"""What a process on the machine uses: claim cores, memory, load, execute, counters, NRT status."""
