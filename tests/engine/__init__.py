"""Tests of the transformers engine on tiny random models."""
