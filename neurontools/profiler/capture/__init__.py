"""Recording a run: what the profiled process does, and the files it writes."""
