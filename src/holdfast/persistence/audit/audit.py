"""The audit: every rule about credit, checked against the rows of one snapshot.

It trusts nothing that the service computed: balances are summed again from postings, chains are hashed again from
the rows, tasks, holds and usage are compared with each other, and orders with operations and events. Most checks
are one query that finds the rows that break a rule; the history itself and the orders are read once through a
server-side cursor, so memory does not grow with them. Auditing a database in use is safe: writers are not blocked.

A checkpoint records how far an account's history was audited. An audit of recent history begins there, which saves
most of the time. A history that was rewritten before a checkpoint no longer matches it.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from holdfast.persistence.audit.checks import Check, tally
from holdfast.persistence.audit.events import EVENT_RULES
from holdfast.persistence.audit.history import HISTORY_RULES, walk_history
from holdfast.persistence.audit.orders import ORDER_RULES, WALKED_RULES, walk_orders
from holdfast.persistence.audit.rules import RULES, check_rule

QUERY_RULES = (*RULES, *ORDER_RULES, *EVENT_RULES)
"""Every rule that is one query."""

_WRITE_CHECKPOINTS = text(
    """
    insert into checkpoints (account_id, number, balance_micro, held_micro, chain_head, at)
    select id, operation_count, balance_micro, held_micro, chain_head, now() from accounts a
    where operation_count > coalesce((select max(number) from checkpoints c where c.account_id = a.id), 0)
    on conflict do nothing
    """
)


def run_audit(connection: Connection, *, recent: bool = False, checkpoint: bool = False) -> list[Check]:
    """Run every check on one snapshot. Blocks for as long as reading the whole history takes.

    With ``recent``, the chain before each account's newest checkpoint is not read again. With ``checkpoint``, each
    account gets a checkpoint at its newest operation of the snapshot if every check passes. The connection must
    have no transaction open; none is left open.
    """
    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=not checkpoint)
    with connection.begin():
        checks = tally(HISTORY_RULES, walk_history(connection, recent=recent))
        checks += tally(WALKED_RULES, walk_orders(connection))
        checks += [check_rule(connection, rule) for rule in QUERY_RULES]
        if checkpoint and all(check.ok for check in checks):
            connection.execute(_WRITE_CHECKPOINTS)
    return checks
