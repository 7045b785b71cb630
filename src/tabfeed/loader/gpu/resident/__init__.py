"""``cache="device"``: the whole dataset on the GPU."""
