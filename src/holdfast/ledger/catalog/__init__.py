"""The catalog: models, their input schemas, prices and terms, and quotes made from them."""
