"""Commands that run until they are stopped: `worker`, `serve`, `upkeep` and `dev`."""
