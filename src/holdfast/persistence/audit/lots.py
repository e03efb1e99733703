"""The audit's rules about lots of credit: they sum to the balance, and what is reserved of them to the holds."""

from __future__ import annotations

from holdfast.persistence.audit.rules import Rule

LOT_RULES: tuple[Rule, ...] = (
    Rule(
        "each account's lots sum to its balance, and to what it owes if it is overdrawn",
        """
        select a.id as account_id, greatest(a.balance_micro, a.held_micro) as left_micro,
               greatest(0, a.held_micro - a.balance_micro) as debt_micro,
               coalesce(p.lots_micro, 0) as lots_micro, coalesce(p.owed_micro, 0) as owed_micro
        from accounts a left join (
            select account_id, sum(amount_micro) filter (where lot is not null) as lots_micro,
                   -sum(amount_micro) filter (where lot is null) as owed_micro
            from postings where ledger_account in ('available', 'held') group by account_id
        ) p on p.account_id = a.id
        where (greatest(a.balance_micro, a.held_micro), greatest(0, a.held_micro - a.balance_micro))
              is distinct from (coalesce(p.lots_micro, 0), coalesce(p.owed_micro, 0))
        """,
        "{left_micro} should be left of its lots and {debt_micro} owed, "
        "its postings leave {lots_micro} of lots and owe {owed_micro}",
    ),
    Rule(
        "what is left of each lot, and what of that is reserved, are the sums of its postings",
        """
        select coalesce(l.account_id, p.account_id) as account_id, coalesce(l.number, p.lot) as number,
               l.remaining_micro, l.reserved_micro, coalesce(p.remaining_micro, 0) as posted_micro,
               coalesce(p.reserved_micro, 0) as posted_reserved_micro
        from (
            select l.account_id, l.number,
                   case when l.closed_number is not null then 0
                        when a.lots is null then greatest(a.balance_micro, a.held_micro)
                        else coalesce(u.remaining_micro, l.amount_micro) end as remaining_micro,
                   case when l.closed_number is not null then 0
                        when a.lots is null then a.held_micro
                        else coalesce(u.reserved_micro, 0) end as reserved_micro
            from credit_lots l join accounts a on a.id = l.account_id left join (
                select a.id, cast(e.used ->> 0 as bigint) as number,
                       cast(e.used ->> 1 as bigint) as remaining_micro,
                       cast(e.used ->> 2 as bigint) as reserved_micro
                from accounts a cross join lateral json_array_elements(cast(a.lots as json)) as e (used)
            ) u on (u.id, u.number) = (l.account_id, l.number)
        ) l full join (
            select account_id, lot, sum(amount_micro) as remaining_micro,
                   coalesce(sum(amount_micro) filter (where ledger_account = 'held'), 0) as reserved_micro
            from postings where lot is not null group by account_id, lot
        ) p on (p.account_id, p.lot) = (l.account_id, l.number)
        where (l.remaining_micro, l.reserved_micro)
              is distinct from (coalesce(p.remaining_micro, 0), coalesce(p.reserved_micro, 0))
           or p.reserved_micro < 0 or p.remaining_micro < p.reserved_micro
        """,
        "lot {number} has {remaining_micro} left with {reserved_micro} reserved, "
        "its postings sum to {posted_micro} with {posted_reserved_micro} held",
    ),
    Rule(
        "each lot was opened by the operation of its number, with the credit that it gave",
        """
        select coalesce(l.account_id, o.account_id) as account_id, coalesce(l.number, o.number) as number,
               l.kind, l.source, l.amount_micro, l.reference, o.kind as opening, o.amount_micro as opening_micro,
               o.reference as opening_reference
        from credit_lots l full join (
            select * from operations where kind in ('credit', 'grant') or (kind = 'adjustment' and amount_micro > 0)
        ) o on (o.account_id, o.number) = (l.account_id, l.number)
        where (l.amount_micro, l.reference, l.created_at) is distinct from (o.amount_micro, o.reference, o.at)
           or (l.kind = 'promotional') <> (o.kind = 'grant')
           or (l.source = 'bonus') <> (o.kind = 'grant' and starts_with(o.reference, 'ord_'))
           or l.source <> all(case o.kind when 'credit' then array['order', 'recharge']
                                          when 'grant' then array['grant', 'coupon', 'bonus']
                                          else array['adjustment'] end)
        """,
        "lot {number} is {kind} credit of {amount_micro} from {source} {reference}; "
        "the journal has a {opening} of {opening_micro} for {opening_reference}",
    ),
    Rule(
        "a lot is closed if and only if nothing is left of it, by the operation that used the last of it",
        """
        select l.account_id, l.number, l.closed_number, coalesce(p.remaining_micro, 0) as remaining_micro,
               coalesce(p.last, l.number) as last
        from credit_lots l left join (
            select account_id, lot, sum(amount_micro) as remaining_micro, max(number) as last
            from postings where lot is not null group by account_id, lot
        ) p on (p.account_id, p.lot) = (l.account_id, l.number)
        where l.closed_number
              is distinct from case when coalesce(p.remaining_micro, 0) = 0 then coalesce(p.last, l.number) end
        """,
        "lot {number} was closed by operation {closed_number}; {remaining_micro} is left of it, "
        "and operation {last} was the last to move it",
    ),
    Rule(
        "what is reserved of each lot is what the open holds took of it",
        """
        select coalesce(r.account_id, h.account_id) as account_id, coalesce(r.lot, h.lot) as lot,
               r.reserved_micro, h.open_micro
        from (
            select account_id, coalesce(lot, 0) as lot, sum(amount_micro) as reserved_micro from postings
            where ledger_account = 'held' group by account_id, lot having sum(amount_micro) <> 0
        ) r full join (
            select p.account_id, coalesce(p.lot, 0) as lot, sum(p.amount_micro) as open_micro
            from holds h join postings p
                on p.account_id = h.account_id and p.number = h.opened_number and p.ledger_account = 'held'
            where h.settled_number is null group by 1, 2 having sum(p.amount_micro) <> 0
        ) h on (h.account_id, h.lot) = (r.account_id, r.lot)
        where r.reserved_micro is distinct from h.open_micro
        """,
        "{reserved_micro} of lot {lot} is reserved, the open holds took {open_micro} of it",
    ),
    Rule(
        "each settled hold leaves each lot that it reserved",
        """
        select h.account_id, h.hold_id, p.lot, p.left_micro
        from holds h cross join lateral (
            select lot, sum(amount_micro) as left_micro from postings
            where account_id = h.account_id and number in (h.opened_number, h.settled_number)
              and ledger_account = 'held'
            group by lot having sum(amount_micro) <> 0
        ) p
        where h.settled_number is not null
        """,
        "hold {hold_id} is settled and has {left_micro} of lot {lot} left",
    ),
    Rule(
        "each expiry is of a lot whose time had come, or of an account that was closed then, by its kind",
        """
        select o.account_id, o.number, l.number as lot, l.kind, l.expires_at, o.at, p.ledger_account
        from operations o
        left join postings a on (a.account_id, a.number, a.ledger_account) = (o.account_id, o.number, 'available')
        left join credit_lots l on (l.account_id, l.number) = (o.account_id, a.lot)
        left join postings p on p.account_id = o.account_id and p.number = o.number
            and p.ledger_account <> 'available'
        left join accounts c on c.id = o.account_id and c.closed_at = o.at
        where o.kind = 'expiry' and (
            l.number is null or (c.id is null and (l.expires_at is null or l.expires_at > o.at))
            or p.ledger_account is distinct from
               case l.kind when 'paid' then 'breakage' when 'promotional' then 'promotions' end)
        """,
        "operation {number} is an expiry at {at} to {ledger_account}; "
        "its lot {lot} is {kind} credit until {expires_at}",
    ),
    Rule(
        "each redeemed coupon gave its credit once, and no credit is of a coupon that was not redeemed",
        """
        select coalesce(u.account_id, l.account_id) as account_id, coalesce(u.claim_id, l.reference) as claim_id,
               u.amount_micro, u.granted_at, l.number, l.amount_micro as given_micro
        from coupon_uses u full join (select * from credit_lots where source = 'coupon') l
            on (l.account_id, l.reference) = (u.account_id, u.claim_id)
        where (u.granted_at is not null) is distinct from (l.number is not null)
           or l.amount_micro <> u.amount_micro
        """,
        "claim {claim_id} of {amount_micro} was granted at {granted_at}; "
        "lot {number} has its credit of {given_micro}",
    ),
)
