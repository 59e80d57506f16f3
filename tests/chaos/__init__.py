"""Random faults under load, and a checker of what the clients saw: `make chaos`."""
