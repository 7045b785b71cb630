"""Put rows of shuffle blocks together into chunks, in reused buffers."""
