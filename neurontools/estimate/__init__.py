"""Estimates of models before anything is rented: graphs recorded on torch's meta device, timed by the engine model."""
