"""Move rows: shuffle them, bring equal keys together, join; on disk or on a cluster."""
