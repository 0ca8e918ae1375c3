"""Sources from elsewhere into data/: a staging per door (hub, s3, https, local), and what they share."""
