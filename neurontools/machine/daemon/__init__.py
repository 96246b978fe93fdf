"""neurond: carries events to the state machine and its effects away."""
