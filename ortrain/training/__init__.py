"""Training: sessions, optimizers, schedules and the trainer."""
