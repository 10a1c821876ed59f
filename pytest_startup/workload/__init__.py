"""The fixed workload: completions that prove readiness, throughput batches, greedy quality prompts."""
