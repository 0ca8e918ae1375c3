"""DVC: the stage graph, recorded digests, integrity checks, remotes."""
