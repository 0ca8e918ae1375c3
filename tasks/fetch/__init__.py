"""Sources from elsewhere into data/: a room per door (hub, s3, https, local), and what they share."""
