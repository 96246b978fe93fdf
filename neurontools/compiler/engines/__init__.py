"""A model of the engines of a NeuronCore: from a graph to instructions, their times and their schedule."""
