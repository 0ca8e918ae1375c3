"""Building blocks that every other package of `model` uses: errors, settings, files, random numbers, logs."""
