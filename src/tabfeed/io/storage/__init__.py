"""Local paths, object stores and HTTP behind one interface: listing, reading ahead, retrying."""
