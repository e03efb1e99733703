"""Who owns state: the trio actor on pykka, its mailbox and messages; accounts, sign-ins, tasks, workers."""
