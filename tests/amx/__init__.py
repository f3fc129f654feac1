"""The AMX kernels on processors without AMX: their tile instructions computed in C."""
