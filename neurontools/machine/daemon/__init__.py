"""neurond: passes events to the state machine and carries out the effects."""
