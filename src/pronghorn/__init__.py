"""Pronghorn: train reinforcement-learning agents as fast as the hardware allows."""
