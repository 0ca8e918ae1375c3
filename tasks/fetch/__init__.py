"""Download sources into data/: one module per source type (hub, s3, https, local)."""
