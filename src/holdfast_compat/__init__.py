"""OpenAI's and Replicate's APIs for their unmodified clients, translated to what the service does."""
