"""OpenAI's and Replicate's APIs for their unmodified clients, and the Model Context Protocol for agents."""
