"""The rules of credit, orders, tasks and the catalog, as values and pure functions without trio, SQL or HTTP."""
