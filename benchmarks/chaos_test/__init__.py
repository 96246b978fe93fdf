"""Many processes on one machine that come, claim, work and die at random, while the daemon is killed: is it right after all?"""
