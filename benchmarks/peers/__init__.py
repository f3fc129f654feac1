"""The runtimes that ortrain is compared with: one script each, run in an environment of its own, which nothing of ortrain enters."""
