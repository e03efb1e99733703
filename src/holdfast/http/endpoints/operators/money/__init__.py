"""Money over all accounts: the books, the ledger's health, payment orders, and decisions on payments."""
