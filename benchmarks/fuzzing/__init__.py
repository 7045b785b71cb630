"""Hostile inputs: how they are made, and what each must lead to."""
