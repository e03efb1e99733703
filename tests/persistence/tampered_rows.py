"""Rows changed by SQL in every way that the audit knows, and the rules that each change breaks."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from holdfast.persistence.audit.orders import BONUS, COLUMNS, HISTORY, NET, ORDER_RULES, PAYMENTS, TOP_UP_RULES
from holdfast.persistence.audit.orders import STATUSES as ORDER_STATUSES
from holdfast.persistence.audit.receipts import RECEIPT_RULES

SUMS = "the postings of each operation sum to zero"
SHAPES = "each operation's postings match its kind and amount"
NUMBERS = "operation numbers run from 1 without gaps"
TOTALS = "running totals follow from the postings, row by row"
CHAINS = "each operation's chain hash covers it and the previous one"
FLOORS = "available credit goes below zero only by reversals"
EVERYTHING = "all postings of each account sum to zero"
BALANCES = "each account's balance and held total are the sums of its postings"
NEWEST = "each account's totals, operation count and chain head match its newest operation"
COUNTS = "each account's operation count is the number of its operations"
OPENINGS = "each hold was opened by exactly one operation of its amount"
OUTCOMES = "each hold has at most one outcome, and its settled number is that outcome's"
LIMITS = "no capture exceeds its hold, and each release returns the whole hold"
OPEN_HOLDS = "each account's held total is the sum of its open holds"
USAGE_SUM = "each account's usage cost is the amount captured"
USAGE = "each usage entry names the operation that settled its request, and costs what it captured"
ADJUSTED = "each adjustment and each operator's grant was made by one action, on its account"
LOT_SUMS = "each account's lots sum to its balance, and to what it owes if it is overdrawn"
LOT_LEFT = "what is left of each lot, and what of that is reserved, are the sums of its postings"
LOT_OPENED = "each lot was opened by the operation of its number, with the credit that it gave"
LOT_CLOSED = "a lot is closed if and only if nothing is left of it, by the operation that used the last of it"
LOT_RESERVED = "what is reserved of each lot is what the open holds took of it"
LOT_HOLDS = "each settled hold leaves each lot that it reserved"
LOT_EXPIRY = "each expiry is of a lot whose time had come, or of an account that was closed then, by its kind"
COUPONS = "each redeemed coupon gave its credit once, and no credit is of a coupon that was not redeemed"
PAIRS = "each task has exactly one hold, and each hold belongs to a task"
ENDS = "a task has ended if and only if its hold is settled, and succeeded if and only if it was captured"
STATUSES = "each task has one usage entry with its status and model"
USAGE_TOTALS = "each account's usage totals are the sums of its ended usage"
LONGER_TOTALS = "usage totals by hour and by day are the sums of those by quarter of an hour"
CONTENTS = "each stored result's and file's content is known and not marked for deletion"
LIMITED = "what was captured of each limit is the cost of the usage in its window"
ORPHANS = "every row belongs to a row that exists"


def in_state(order_id: str, path: str, value: object) -> str:
    """Return SQL that changes one value in an order's state."""
    encoded = msgspec.json.encode(value).decode()
    return f"update orders set state = jsonb_set(state::jsonb, '{path}', '{encoded}') where order_id = '{order_id}'"


ANNOUNCED = "each task that ended has one event for it, if its webhook subscribed to it"
SENT = "each webhook of an account gets one event for the end of a task"
ALERTED = "an alert about the balance is announced exactly while less is available than it says"
RECORDED = "each task records the outcome of its assets_ready event"
LISTED, RESERVED, CASH, OWNED, STORED = (rule.name for rule in ORDER_RULES)
ONE_OPEN, COUNTED = (rule.name for rule in TOP_UP_RULES)

RECEIPTS, RECEIPTS_SUM, RECEIPT_NUMBERS, RECEIPT_FIELDS, RECEIPT_FIRST = (rule.name for rule in RECEIPT_RULES)

ADA = "account_id = 'acct_ada'"
EVA = "account_id = 'acct_eva'"


LATE_RECEIPTS = "update receipt_series set begun_at = now() - interval '1 hour'"
"""Receipts were begun so long ago that all must be there."""

CASES: list[tuple[list[str], set[str]]] = [
    # The books have the receipt R-000001 of one order, and R-000002 with its credit note R-000003 of another.
    ([LATE_RECEIPTS, "delete from receipts where sequence = 1"], {RECEIPTS, RECEIPTS_SUM, RECEIPT_NUMBERS}),
    ([LATE_RECEIPTS, "delete from receipts where sequence = 3"], {RECEIPTS, RECEIPTS_SUM, RECEIPT_NUMBERS}),
    (
        # A receipt that is missing is none that is late.
        ["delete from receipts where sequence = 1"],
        {RECEIPT_NUMBERS},
    ),
    (
        ["update receipts set credit_micro = credit_micro + 1 where sequence = 1"],
        {RECEIPTS, RECEIPTS_SUM, RECEIPT_FIELDS},
    ),
    (
        ["update receipts set credit_micro = 1000000, amount_micro = 1000000 where sequence = 3"],
        {RECEIPTS, RECEIPTS_SUM},
    ),
    (["update receipts set amount_micro = 7 where sequence = 1"], {RECEIPT_FIELDS}),
    (["update receipts set kind = 'receipt' where sequence = 3"], {RECEIPTS, RECEIPTS_SUM}),
    (["update receipts set kind = 'invoice' where sequence = 1"], {RECEIPTS, RECEIPTS_SUM}),
    (
        [LATE_RECEIPTS, "update receipts set account_id = 'acct_ada' where sequence = 1"],
        {RECEIPTS, RECEIPTS_SUM, ORPHANS},
    ),
    (["update receipts set order_id = 'ord_new' where sequence = 1"], {RECEIPTS}),
    (["update receipts set order_id = 'ord_gone' where sequence = 1"], {RECEIPTS, ORPHANS}),
    ([LATE_RECEIPTS, "update receipts set operation_id = 'op_gone' where sequence = 1"], {RECEIPTS}),
    (["update receipts set operation_number = 9 where sequence = 1"], {RECEIPTS}),
    (["update receipts set moved_at = moved_at + interval '1 s' where sequence = 1"], {RECEIPTS}),
    (["update receipts set reason = 'a gift' where sequence = 1"], {RECEIPTS}),
    (["update receipts set sequence = 7 where sequence = 3"], {RECEIPT_NUMBERS}),
    (["update receipts set number = 'R-000009' where sequence = 1"], {RECEIPT_NUMBERS}),
    (["update receipt_series set last_number = 5"], {RECEIPT_NUMBERS}),
    (["update receipt_series set last_number = 2"], {RECEIPT_NUMBERS}),
    (["update receipts set month = '2026-10' where sequence = 1"], {RECEIPT_FIELDS}),
    (["update receipts set receipt_number = 'R-000001' where sequence = 3"], {RECEIPT_FIRST}),
    (["update receipts set receipt_number = null where sequence = 3"], {RECEIPT_FIRST}),
    (["update receipts set receipt_number = 'R-000002' where sequence = 1"], {RECEIPT_FIRST}),
    (
        [f"update postings set amount_micro = amount_micro + 1 where {ADA} and number = 1 and line = 1"],
        {SUMS, SHAPES, TOTALS, CHAINS, EVERYTHING, BALANCES, LOT_SUMS, LOT_LEFT},
    ),
    (
        # Both postings: the sums still agree, the chain and the totals do not.
        [
            f"update postings set amount_micro = amount_micro + 5 where {ADA} and number = 1 and line = 1",
            f"update postings set amount_micro = amount_micro - 5 where {ADA} and number = 1 and line = 0",
        ],
        {SHAPES, TOTALS, CHAINS, BALANCES, LOT_SUMS, LOT_LEFT},
    ),
    ([f"update operations set reason = 'a gift' where {ADA} and number = 1"], {CHAINS}),
    ([f"update operations set at = at + interval '1 ms' where {ADA} and number = 2"], {CHAINS}),
    (
        ["update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'"],
        {BALANCES, NEWEST, LOT_SUMS, LOT_LEFT},
    ),
    (["update accounts set chain_head = sha256('') where id = 'acct_ada'"], {NEWEST}),
    (["update accounts set chain_head = sha256('') where id = 'acct_new'"], {NEWEST}),
    (["update accounts set operation_count = 11 where id = 'acct_ada'"], {NEWEST, COUNTS}),
    (
        # The last operations deleted and the totals reset to match: the chain head differs.
        [
            f"delete from postings where {ADA} and number = 10",
            f"delete from operations where {ADA} and number = 10",
            "update accounts set operation_count = 9, balance_micro = balance_micro - 100000 where id = 'acct_ada'",
        ],
        {NEWEST, LOT_OPENED, ORPHANS},
    ),
    (
        [
            f"delete from postings where {ADA} and number = 1",
            f"delete from operations where {ADA} and number = 1",
        ],
        {NUMBERS, TOTALS, CHAINS, BALANCES, COUNTS, LOT_SUMS, LOT_LEFT, LOT_OPENED, ORPHANS},
    ),
    (
        [f"update operations set kind = 'credit' where {ADA} and kind = 'reversal'"],
        {SHAPES, CHAINS, FLOORS, LOT_OPENED},
    ),
    (["update holds set amount_micro = 4000000 where hold_id = 'hold_done'"], {OPENINGS}),
    (["update holds set amount_micro = 2000000 where hold_id = 'hold_done'"], {OPENINGS, LIMITS}),
    (["update holds set amount_micro = 4000000 where hold_id = 'hold_failed'"], {OPENINGS, LIMITS}),
    (
        ["update holds set settled_number = null where hold_id = 'hold_done'"],
        {OUTCOMES, OPEN_HOLDS, ENDS, LOT_RESERVED},
    ),
    (
        ["update holds set settled_number = 9 where hold_id = 'hold_open'"],
        {OUTCOMES, OPEN_HOLDS, ENDS, LOT_RESERVED, LOT_HOLDS},
    ),
    (["delete from holds where hold_id = 'hold_open'"], {OPENINGS, OPEN_HOLDS, PAIRS, LOT_RESERVED}),
    (["delete from holds where hold_id = 'hold_free'"], {OPENINGS, OUTCOMES, PAIRS}),
    (
        [
            "drop index uq_operations_settled_hold",
            "insert into operations select 'op_again', account_id, 4, kind, amount_micro, balance_after_micro,"
            " held_after_micro, hold_id, reference, reason, at, chain_hash from operations"
            " where account_id = 'acct_bob' and number = 3",
        ],
        {OUTCOMES, SHAPES, CHAINS, NEWEST, COUNTS, USAGE},
    ),
    (
        ["update usage_entries set cost_micro = 0 where request_id = 'task_done'"],
        {USAGE_SUM, USAGE, USAGE_TOTALS},
    ),
    (["update usage_entries set operation_id = 'op_x' where request_id = 'task_gone'"], {USAGE}),
    (["update usage_entries set operation_id = 'op_x' where request_id = 'task_open'"], {USAGE}),
    (["delete from usage_entries where request_id = 'task_gone'"], {USAGE, STATUSES, USAGE_TOTALS}),
    (["update usage_entries set status = 'queued' where request_id = 'task_gone'"], {STATUSES, USAGE_TOTALS}),
    (
        ["update usage_totals set count = 5 where span_s = 900 and status = 'succeeded'"],
        {USAGE_TOTALS, LONGER_TOTALS},
    ),
    (["update usage_totals set cost_micro = cost_micro + 1 where span_s = 86400"], {LONGER_TOTALS}),
    (["delete from usage_totals where span_s = 3600 and status = 'canceled'"], {LONGER_TOTALS}),
    (["update tasks set status = 'failed' where request_id = 'task_done'"], {ENDS, STATUSES, ANNOUNCED}),
    (
        ["update tasks set status = 'processing' where request_id = 'task_gone'"],
        {ENDS, STATUSES, ANNOUNCED},
    ),
    (["update tasks set status = 'canceled' where request_id = 'task_open'"], {ENDS, STATUSES}),
    (["update tasks set request = '{}' where request_id = 'task_open'"], {PAIRS}),
    (["delete from tasks where request_id = 'task_open'"], {PAIRS, ORPHANS}),
    (["delete from accounts where id = 'acct_bob'"], {ORPHANS, LOT_LEFT}),
    (["insert into sessions values ('acct_x', 'ses_1', '', now(), now(), null)"], {ORPHANS}),
    (["insert into key_groups values ('acct_x', 'grp_1', 'team', '[]', now())"], {ORPHANS}),
    (["insert into group_keys values ('acct_ada', 'key_1', 'grp_none')"], {ORPHANS}),
    (["insert into account_limits values ('acct_x', 'day', null, null, now(), 0)"], {ORPHANS}),
    (["insert into account_limits values ('acct_ada', 'total', null, 5, '1970-01-01Z', 7)"], {LIMITED}),
    (
        [
            "insert into api_keys (account_id, key_id, secret_sha256, prefix, name, scopes, created_at, is_paused, "
            "models, limit_micro, limit_window, window_start, captured_micro) values "
            "('acct_ada', 'key_9', '', 'p', 'n', '{}', now(), false, '{}', 5, 'month', '2026-11-01Z', 1)"
        ],
        {LIMITED},
    ),
    (["update orders set status = 'failed' where order_id = 'ord_paid'"], {COLUMNS}),
    (["update order_payments set order_id = 'ord_new' where order_id = 'ord_paid'"], {OWNED}),
    (["delete from order_payments where order_id = 'ord_paid'"], {OWNED}),
    ([in_state("ord_paid", "{provider_object_ids}", [])], {OWNED, PAYMENTS}),
    ([in_state("ord_back", "{provider_object_ids,0}", "ch_paid")], {OWNED, PAYMENTS}),
    (["update orders set expires_at = expires_at + interval '1 day' where order_id = 'ord_new'"], {COLUMNS}),
    (["update orders set state = '{\"moves\": 1}' where order_id = 'ord_new'"], {COLUMNS}),
    ([in_state("ord_paid", "{statuses,processing_status}", "failed")], {ORDER_STATUSES, HISTORY}),
    ([in_state("ord_back", "{statuses,reconcile_status}", "reconciled")], {HISTORY, COLUMNS}),
    ([in_state("ord_back", "{history,1,operation_id}", "op_x")], {HISTORY}),
    ([in_state("ord_back", "{moves,1,amount_micro}", 3_000_000)], {NET, LISTED}),
    ([in_state("ord_back", "{facts,refunds,re_back,amount_micro}", 1)], {NET}),
    ([in_state("ord_back", "{moves,1,operation_id}", "op_x")], {LISTED, HISTORY}),
    ([in_state("ord_paid", "{event_ids}", [])], {STORED}),
    ([in_state("ord_new", "{event_ids}", ["evt_unknown"])], {STORED}),
    (
        [
            "update orders set request = jsonb_set(request::jsonb, '{operation_id}', '\"op_y\"')"
            " where order_id = 'ord_paid'"
        ],
        {RESERVED},
    ),
    (["delete from payment_events where event_id = 'evt_back_2'"], {STORED}),
    (["update payment_events set verdict = 'refused' where event_id = 'evt_paid_1'"], {STORED}),
    (["update payment_events set order_id = 'ord_new' where event_id = 'evt_paid_1'"], {STORED}),
    (["update payment_events set order_id = 'ord_x' where event_id = 'evt_paid_1'"], {STORED, ORPHANS}),
    (["delete from orders where order_id = 'ord_paid'"], {LISTED, OWNED, STORED, ORPHANS}),
    (
        ["update operations set amount_micro = 1 where operation_id = 'op_reserved_paid'"],
        {LISTED, SHAPES, CHAINS, LOT_OPENED},
    ),
    (
        ["update operations set reference = 'ord_new' where operation_id = 'op_reserved_paid'"],
        {LISTED, CHAINS, LOT_OPENED, RECEIPTS},
    ),
    (
        [
            "update postings set ledger_account = 'cash:sandbox'"
            " where account_id = 'acct_cho' and number = 1 and amount_micro < 0"
        ],
        {CASH, CHAINS, RECEIPTS, RECEIPTS_SUM},
    ),
    (["update orders set origin = 'customer' where order_id = 'ord_open'"], {COLUMNS, ONE_OPEN, COUNTED}),
    (["update auto_top_ups set open_order_id = null"], {ONE_OPEN}),
    (["update auto_top_ups set open_order_id = 'ord_paid'"], {ONE_OPEN}),
    (["update auto_top_ups set state = jsonb_set(state::jsonb, '{attempts,today}', '2')"], {COUNTED}),
    (["update auto_top_ups set state = jsonb_set(state::jsonb, '{attempts,this_month}', '3')"], {COUNTED}),
    (["update auto_top_ups set account_id = 'acct_x'"], {ONE_OPEN, COUNTED, ORPHANS}),
    (["insert into postings values ('acct_ada', 99, 0, 'revenue', 0)"], {ORPHANS}),
    (["update contents set marked_at = now()"], {CONTENTS}),
    (["update contents set content_type = 'image/gif'"], {CONTENTS}),
    (["update assets set request_id = 'task_x'"], {ORPHANS}),
    (["delete from outbox where kind = 'task.canceled'"], {ANNOUNCED, ORPHANS}),
    (["update outbox set kind = 'task.failed' where kind = 'task.canceled'"], {ANNOUNCED}),
    (["update outbox set kind = 'task.succeeded' where kind = 'task.assets_ready'"], {ANNOUNCED}),
    (["update tasks set request = '{\"hold_id\": \"hold_gone\"}' where request_id = 'task_gone'"], {ANNOUNCED}),
    (["update outbox set request_id = 'task_x' where kind = 'task.succeeded'"], {ANNOUNCED, ORPHANS}),
    (["update tasks set state = '{}' where request_id = 'task_done'"], {RECORDED}),
    (
        [
            "insert into outbox select (jsonb_populate_record(o, jsonb_build_object("
            "'event_id', 'evt_webhook', 'webhook_id', 'wh_1', 'receiver', 'wh_1', 'kind', 'task.failed'))).* "
            "from outbox o where kind = 'task.canceled'"
        ],
        {SENT},
    ),
    (["insert into alerts values ('acct_ada', '{\"balance_below_micro\": 1000000000000000}')"], {ALERTED}),
    (['insert into alerts values (\'acct_ada\', \'{"announced": {"balance": "5.00"}}\')'], {ALERTED}),
    (["insert into alerts values ('acct_x', '{}')"], {ORPHANS}),
    (["insert into webhooks values ('acct_x', 'wh_1', 'u', '{}', true, now(), now())"], {ORPHANS}),
    (["update outbox set request_id = null, account_id = 'acct_x' where kind = 'task.assets_ready'"], {ORPHANS}),
    (["update outbox set status = 'given_up', request_id = 'task_gone'"], {ANNOUNCED}),
    (
        # Credit given by an operator, made to look paid.
        [
            "update postings set ledger_account = 'cash:sandbox'"
            " where account_id = 'acct_dan' and number = 1 and ledger_account = 'adjustments'"
        ],
        {SHAPES, CHAINS},
    ),
    (["update operator_actions set account_id = 'acct_bob' where action_id like '%dan_1'"], {ADJUSTED}),
    (["update operations set reference = 'act_x' where account_id = 'acct_dan'"], {ADJUSTED, CHAINS, LOT_OPENED}),
    ([f"update credit_lots set expires_at = expires_at + interval '2 hours' where {EVA}"], {LOT_EXPIRY, CHAINS}),
    ([f"update credit_lots set kind = 'paid' where {EVA} and number = 3"], {LOT_OPENED, CHAINS}),
    ([f"update credit_lots set source = 'order' where {EVA} and number = 3"], {LOT_OPENED, CHAINS}),
    ([f"update credit_lots set amount_micro = 7 where {EVA} and number = 3"], {LOT_OPENED}),
    ([f"update credit_lots set closed_number = null where {EVA} and number = 2"], {LOT_CLOSED, LOT_LEFT}),
    ([f"update credit_lots set closed_number = 6 where {EVA} and number = 2"], {LOT_CLOSED}),
    ([f"update credit_lots set closed_number = 7 where {EVA} and number = 1"], {LOT_CLOSED, LOT_LEFT}),
    (["update accounts set lots = '[[3,2500000,0]]' where id = 'acct_eva'"], {LOT_LEFT}),
    (["update accounts set lots = null where id = 'acct_eva'"], {LOT_LEFT}),
    (
        # A hold made to have reserved another lot, and one made to return what it took to another lot.
        [f"update postings set lot = 1 where {EVA} and number = 5"],
        {LOT_LEFT, CHAINS},
    ),
    (
        [f"update postings set lot = 3 where {EVA} and number = 6 and ledger_account = 'held' and lot = 2"],
        {LOT_LEFT, LOT_RESERVED, LOT_HOLDS, LOT_CLOSED, CHAINS},
    ),
    ([f"update postings set lot = null where {EVA} and number = 3"], {LOT_SUMS, LOT_LEFT, LOT_CLOSED, CHAINS}),
    (
        [f"update postings set ledger_account = 'breakage' where {EVA} and ledger_account = 'promotions'"],
        {LOT_EXPIRY, SHAPES, CHAINS},
    ),
    (
        ["insert into coupon_uses values ('acct_eva', 'cpn_x', 'cpu_x', 5, now(), now())"],
        {COUPONS},
    ),
    ([f"update credit_lots set source = 'coupon' where {EVA} and number = 2"], {COUPONS, CHAINS}),
    # The order of which operation 6 gave the credit and operation 7 the bonus.
    ([in_state("ord_gift", "{bonus_moves,0,amount_micro}", 1_999_999)], {LISTED}),
    ([in_state("ord_gift", "{bonus_moves,0,amount_micro}", 2_000_001)], {LISTED, BONUS}),
    ([in_state("ord_gift", "{bonus_moves}", [])], {LISTED, BONUS}),
    (
        ["update orders set request = (request::jsonb - 'bonus')::json where order_id = 'ord_gift'"],
        {BONUS},
    ),
    (
        ["update credit_lots set source = 'grant' where account_id = 'acct_gus' and number = 7"],
        {LOT_OPENED, CHAINS},
    ),
    ([f"update credit_lots set source = 'bonus' where {EVA} and number = 2"], {LOT_OPENED, CHAINS}),
    (
        ["update operations set reference = 'act_x' where account_id = 'acct_gus' and number = 7"],
        {ADJUSTED, CHAINS, LOT_OPENED, LISTED},
    ),
    (
        ["update operations set reference = 'ord_gift' where account_id = 'acct_dan' and number = 2"],
        {CHAINS, LISTED},
    ),
]
"""Statements, and the names of the rules that are broken after them."""
UNREADABLE: list[tuple[list[str], set[str]]] = [
    ([in_state("ord_back", "{moves,1,amount_micro}", "many")], {LISTED, COLUMNS}),
    (["update accounts set lots = 'none' where id = 'acct_eva'"], {LOT_LEFT}),
    (["update orders set created_at = 'infinity' where order_id = 'ord_back'"], {COLUMNS}),
    (["update operations set at = 'infinity' where account_id = 'acct_dan' and number = 2"], {CHAINS}),
]
"""Those after which a rule finds a value that it cannot read."""


TAMPERED = ("operations", "postings", "checkpoints", "payment_events", "receipts")
GUARDS = "select tgrelid::regclass, tgname from pg_trigger where tgenabled = 'A' and not tgisinternal"


def tamper(url: str, *statements: str) -> None:
    """Change rows without the tables' triggers; each statement must change some, unless it drops an index."""
    with psycopg.connect(url) as connection:
        guards = connection.execute(GUARDS).fetchall()
        tamper_within(connection, *statements)
        for table in TAMPERED:
            connection.execute(f"alter table {table} enable trigger all")
        for table, trigger in guards:
            connection.execute(f"alter table {table} enable always trigger {trigger}")


def tamper_within(connection: psycopg.Connection[Any], *statements: str) -> None:
    """Change rows as :func:`tamper` does, in a connection's transaction."""
    for statement in statements:
        if statement.startswith("drop"):
            connection.execute(statement)
    for table in TAMPERED:
        connection.execute(f"alter table {table} disable trigger all")
    for statement in statements:
        if not statement.startswith("drop"):
            assert connection.execute(statement).rowcount > 0, statement
