"""The catalog: models, their input schemas, prices and terms, and quotes for inputs."""
