-- Events are found by their ids alone: operators search for what a customer's receiver shows.

create index ix_outbox_event_id on outbox (event_id);
