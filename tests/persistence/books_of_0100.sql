-- Rows that the release with revision 0100 wrote, as pg_dump prints them: every kind of its operations and tasks.
insert into accounts values
	('acct_fay', 'acct_fay@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 3, 3, 0, 0, '\x078acce61acf924b9fa2c80a17a052f3c55544624ab8ee67a9bd8a46c261254c'),
	('acct_gus', 'acct_gus@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 2, 2, 4000000, 4000000, '\x8440905ceff05286609125ca62b149802762cb14ef8dcdac6cdb46f97c825302'),
	('acct_ada', 'acct_ada@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 10, 10, -1400000, 1000000, '\x981ccda7c35e4425e607d06c556e5a004a75fe53a8375070fd6727c0cddf9821'),
	('acct_bob', 'acct_bob@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 3, 3, 5000000, 0, '\xb8a3fa231c296aeec7f9e62bce9e40c567e5075b293be6a6db55e403a25874a2'),
	('acct_new', 'acct_new@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 0, 0, 0, 0, '\x0000000000000000000000000000000000000000000000000000000000000000'),
	('acct_dan', 'acct_dan@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 2, 2, 1500000, 0, '\xcdf59ed547be71efd74cf4338d8a755099f906b4eea29c90592d2b7afa143c73'),
	('acct_cho', 'acct_cho@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 3, 3, 16000000, 0, '\x3bded4f9e5ea4fefe02f5a531f196544a96240dcdcb0622f70386c689e813515'),
	('acct_eve', 'acct_eve@example.com', 'User', 'holdfast', '2026-11-20 12:00:00+00', NULL, 4, 4, 1000000, 2500000, '\x36479d61adeb0ea81469e21dd76e896b59f3a711527e5fec2fc28a5e3a6d56a9');
insert into assets values
	('acct_ada', 'task_done', 0, 'asset_done', '0000000000000000000000000000000000000000000000000000000000000000', 1, 'image/png', '2026-11-20 12:00:00+00', '2026-11-27 12:00:00+00');
insert into checkpoints values
	('acct_ada', 4, 7500000, 1000000, '\xdab6240c78fb42292b483c1797354e653a0dc7c4dd416fe0a0e1236d486c3e1d', '2026-11-20 12:00:00+00');
insert into contents values
	('0000000000000000000000000000000000000000000000000000000000000000', 'image/png', '2026-11-20 12:00:00+00', NULL);
insert into holds values
	('acct_ada', 'hold_open', 1000000, 'task_open', 3, NULL),
	('acct_ada', 'hold_done', 3000000, 'task_done', 2, 4),
	('acct_ada', 'hold_gone', 2000000, 'task_gone', 5, 6),
	('acct_ada', 'hold_free', 0, 'task_free', 7, 8),
	('acct_bob', 'hold_failed', 5000000, 'task_failed', 2, 3),
	('acct_eve', 'hold_eve1', 2000000, 'task_eve1', 2, NULL),
	('acct_eve', 'hold_eve2', 500000, 'task_eve2', 3, NULL),
	('acct_fay', 'hold_fay1', 1000000, 'task_fay1', 2, 3),
	('acct_gus', 'hold_gus1', 4000000, 'task_gus1', 2, NULL);
insert into operations values
	('op_acct_ada_1', 'acct_ada', 1, 'credit', 10000000, 10000000, 0, NULL, 'op_acct_ada_1', 'recharge', '2026-11-20 12:00:00+00', '\xf96a4caaedc01b8046c71d9cb9f347fb1e4c3087b467d13f2f27ab541d69ba54'),
	('op_acct_ada_2', 'acct_ada', 2, 'hold', 3000000, 10000000, 3000000, 'hold_done', 'task_done', 'task created', '2026-11-20 12:00:00.007+00', '\x312e4a799bd6ce1a6d5bb92aedd436f0a44c240b89f3ba76311f80b6b7c11029'),
	('op_acct_ada_3', 'acct_ada', 3, 'hold', 1000000, 10000000, 4000000, 'hold_open', 'task_open', 'task created', '2026-11-20 12:00:00.014+00', '\x3de8d55c93f4386927b140a1dd8df12c35b530a28e1ba930a554bc1952da92d4'),
	('op_acct_ada_4', 'acct_ada', 4, 'capture', 2500000, 7500000, 1000000, 'hold_done', 'task_done', 'succeeded', '2026-11-20 12:00:00.021+00', '\xdab6240c78fb42292b483c1797354e653a0dc7c4dd416fe0a0e1236d486c3e1d'),
	('op_acct_ada_5', 'acct_ada', 5, 'hold', 2000000, 7500000, 3000000, 'hold_gone', 'task_gone', 'task created', '2026-11-20 12:00:00.028+00', '\xea6b96e6fbf2f0fc610d708979041c15478e097f9b9b05c707888ffc5a42986a'),
	('op_acct_ada_6', 'acct_ada', 6, 'release', 2000000, 7500000, 1000000, 'hold_gone', 'task_gone', 'canceled', '2026-11-20 12:00:00.035+00', '\x78047c9616549a7d6d9daaf86fd529f3095fb5804eb1e90dc6ee5bf8a63056a1'),
	('op_acct_ada_7', 'acct_ada', 7, 'hold', 0, 7500000, 1000000, 'hold_free', 'task_free', 'task created', '2026-11-20 12:00:00.042+00', '\xe865ddd79c847683d41b5f6c4d85a6d69affd662f97f75b2bb4f1e54f60eda79'),
	('op_acct_ada_8', 'acct_ada', 8, 'capture', 0, 7500000, 1000000, 'hold_free', 'task_free', 'succeeded', '2026-11-20 12:00:00.049+00', '\xf615ec4c8a3be6706a82da5a706af3cd7b8dfe07cb2f9c9aa38e8c2b7e5b5f65'),
	('op_acct_ada_9', 'acct_ada', 9, 'reversal', 9000000, -1500000, 1000000, NULL, 'op_acct_ada_9', 'chargeback', '2026-11-20 12:00:00.056+00', '\x8b4fb8ca69f19000e094247ebb46e67c54eca10c6145dc781f5483523f853645'),
	('op_acct_ada_10', 'acct_ada', 10, 'credit', 100000, -1400000, 1000000, NULL, 'op_acct_ada_10', 'recharge', '2026-11-20 12:00:00.063+00', '\x981ccda7c35e4425e607d06c556e5a004a75fe53a8375070fd6727c0cddf9821'),
	('op_acct_bob_1', 'acct_bob', 1, 'credit', 5000000, 5000000, 0, NULL, 'op_acct_bob_1', 'recharge', '2026-11-20 12:00:00+00', '\x6455b02870486469eeeb2330cfd9f6c248aade4c642ff77eab8b5f02652609af'),
	('op_acct_bob_2', 'acct_bob', 2, 'hold', 5000000, 5000000, 5000000, 'hold_failed', 'task_failed', 'task created', '2026-11-20 12:00:00.007+00', '\xfd4df2f959bddf5fea16b3c7e7413073c9bc0d91c8032561da646a3e954d26f6'),
	('op_acct_bob_3', 'acct_bob', 3, 'release', 5000000, 5000000, 0, 'hold_failed', 'task_failed', 'failed', '2026-11-20 12:00:00.014+00', '\xb8a3fa231c296aeec7f9e62bce9e40c567e5075b293be6a6db55e403a25874a2'),
	('op_acct_dan_1', 'acct_dan', 1, 'adjustment', 2000000, 2000000, 0, NULL, 'act_op_acct_dan_1', 'adjusted', '2026-11-20 12:00:00+00', '\x03c262be875ffda193960487b4c490b0a3c015ff0e5c454c1d296f6b1b7b8133'),
	('op_acct_dan_2', 'acct_dan', 2, 'adjustment', -500000, 1500000, 0, NULL, 'act_op_acct_dan_2', 'adjusted', '2026-11-20 12:00:00.007+00', '\xcdf59ed547be71efd74cf4338d8a755099f906b4eea29c90592d2b7afa143c73'),
	('op_reserved_paid', 'acct_cho', 1, 'credit', 10000000, 10000000, 0, NULL, 'ord_paid', 'payment_succeeded', '2026-11-20 12:00:00+00', '\x1838457ee78d59ddf41999a0bc11fd9f0945a4dff5614cbf39d3e9fcac451fc2'),
	('op_reserved_back', 'acct_cho', 2, 'credit', 10000000, 20000000, 0, NULL, 'ord_back', 'payment_succeeded', '2026-11-20 12:00:00.007+00', '\xca0bd0002859f503bd747e1c8882f06fb3b8631ce9a2c240042b0a0f2a93b935'),
	('op_acct_cho_3_back', 'acct_cho', 3, 'reversal', 4000000, 16000000, 0, NULL, 'ord_back', 'refund', '2026-11-20 12:00:00.014+00', '\x3bded4f9e5ea4fefe02f5a531f196544a96240dcdcb0622f70386c689e813515'),
	('op_acct_eve_1', 'acct_eve', 1, 'credit', 3000000, 3000000, 0, NULL, 'op_acct_eve_1', 'recharge', '2026-11-20 12:00:00+00', '\x7e674975d89c317fb37cd0c9f896015ae39ca5622fe2181ee58d4875604fafbe'),
	('op_acct_eve_2', 'acct_eve', 2, 'hold', 2000000, 3000000, 2000000, 'hold_eve1', 'task_eve1', 'task created', '2026-11-20 12:00:00.007+00', '\x59b3b7290287f06658f472f6e177bfd8b513e5b6d3b8d31877f38d48da6f52eb'),
	('op_acct_eve_3', 'acct_eve', 3, 'hold', 500000, 3000000, 2500000, 'hold_eve2', 'task_eve2', 'task created', '2026-11-20 12:00:00.014+00', '\xb03575fce3f0a0d61d383e9b58bf7b073f030b40f1f3e6659aaab77f8e46c680'),
	('op_acct_eve_4', 'acct_eve', 4, 'reversal', 2000000, 1000000, 2500000, NULL, 'op_acct_eve_4', 'chargeback', '2026-11-20 12:00:00.021+00', '\x36479d61adeb0ea81469e21dd76e896b59f3a711527e5fec2fc28a5e3a6d56a9'),
	('op_acct_fay_1', 'acct_fay', 1, 'credit', 1000000, 1000000, 0, NULL, 'op_acct_fay_1', 'recharge', '2026-11-20 12:00:00+00', '\xaf2ea90b6185af25eb50cb0ee6aae410a68a997dddbee44f6836b77321086a5a'),
	('op_acct_fay_2', 'acct_fay', 2, 'hold', 1000000, 1000000, 1000000, 'hold_fay1', 'task_fay1', 'task created', '2026-11-20 12:00:00.007+00', '\xb785d735dff61acd0ad6a04be5884c37814093a97449f07e9ebec45e2254a08d'),
	('op_acct_fay_3', 'acct_fay', 3, 'capture', 1000000, 0, 0, 'hold_fay1', 'task_fay1', 'succeeded', '2026-11-20 12:00:00.014+00', '\x078acce61acf924b9fa2c80a17a052f3c55544624ab8ee67a9bd8a46c261254c'),
	('op_acct_gus_1', 'acct_gus', 1, 'credit', 4000000, 4000000, 0, NULL, 'op_acct_gus_1', 'recharge', '2026-11-20 12:00:00+00', '\x6960371f69cf47c33c2565a52c0bf9ea7c7ee5839195bbfe1b650c3404168c15'),
	('op_acct_gus_2', 'acct_gus', 2, 'hold', 4000000, 4000000, 4000000, 'hold_gus1', 'task_gus1', 'task created', '2026-11-20 12:00:00.007+00', '\x8440905ceff05286609125ca62b149802762cb14ef8dcdac6cdb46f97c825302');
insert into operator_actions values
	('act_op_acct_dan_1', '2026-11-20 12:00:00+00', 'x', 'x', 'x', 'x', 'x', 'acct_dan', NULL, NULL, 'x', NULL, NULL, NULL, NULL, NULL),
	('act_op_acct_dan_2', '2026-11-20 12:00:00+00', 'x', 'x', 'x', 'x', 'x', 'acct_dan', NULL, NULL, 'x', NULL, NULL, NULL, NULL, NULL);
insert into order_payments values
	('cardprovider', 'ch_paid', 'acct_cho', 'ord_paid'),
	('cardprovider', 'pi_paid', 'acct_cho', 'ord_paid'),
	('cardprovider', 'ch_back', 'acct_cho', 'ord_back'),
	('cardprovider', 'pi_back', 'acct_cho', 'ord_back');
insert into orders values
	('acct_cho', 'ord_paid', 2, 'cardprovider', 'credited', 'unreconciled', '2026-11-20 12:00:00+00', '2026-11-20 12:00:00+00', '2026-11-21 12:00:00+00', '2026-11-20 12:01:00+00', '{"order_id": "ord_paid", "account_id": "acct_cho", "provider": "cardprovider", "amount_micro": 10000000, "currency": "USD", "operation_id": "op_reserved_paid", "brand_id": "holdfast", "legal_entity_id": "holdfast", "merchant_of_record": "Holdfast", "provider_account_id": "holdfast", "created_at": "2026-11-20T12:00:00Z", "expires_at": "2026-11-21T12:00:00Z", "fx": {"base": "USD", "quote": "USD", "rate": "1", "source": "identity", "captured_at": "2026-11-20T12:00:00Z", "credits_per_unit": "1"}}', '{"statuses": {"status": "credited", "processing_status": "succeeded", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "facts": {"payments": {"pi_paid": {"at": 1, "claims": [{"amount_micro": 10000000, "currency": "USD"}], "charge_ids": ["ch_paid"]}}, "charges": {"ch_paid": "pi_paid"}}, "moves": [{"kind": "credit", "amount_micro": 10000000, "operation_id": "op_reserved_paid", "reason": "payment_succeeded"}], "history": [{"statuses": {"status": "pending", "processing_status": "pending", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "api", "at": "2026-11-20T12:00:00Z", "reason": "order_created"}, {"statuses": {"status": "credited", "processing_status": "succeeded", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "provider_webhook", "at": "2026-11-20T12:00:00Z", "reason": "payment_succeeded", "event_id": "evt_paid_1", "operation_id": "op_reserved_paid"}], "event_ids": ["evt_paid_1"], "provider_object_ids": ["ch_paid", "pi_paid"], "payment_id": "pi_paid", "charge_id": "ch_paid", "applied_event_id": "evt_paid_1", "real_event_id": "evt_paid_1", "real_event_type": "payment_intent.succeeded", "credited_at": "2026-11-20T12:00:00Z", "reconcile_due_at": "2026-11-20T12:01:00Z"}'),
	('acct_cho', 'ord_back', 3, 'cardprovider', 'credited', 'unreconciled', '2026-11-20 12:00:00+00', '2026-11-20 12:00:00.014+00', '2026-11-21 12:00:00+00', '2026-11-20 12:01:00.014+00', '{"order_id": "ord_back", "account_id": "acct_cho", "provider": "cardprovider", "amount_micro": 10000000, "currency": "USD", "operation_id": "op_reserved_back", "brand_id": "holdfast", "legal_entity_id": "holdfast", "merchant_of_record": "Holdfast", "provider_account_id": "holdfast", "created_at": "2026-11-20T12:00:00Z", "expires_at": "2026-11-21T12:00:00Z", "fx": {"base": "USD", "quote": "USD", "rate": "1", "source": "identity", "captured_at": "2026-11-20T12:00:00Z", "credits_per_unit": "1"}}', '{"statuses": {"status": "credited", "processing_status": "succeeded", "reversal_status": "partially_refunded", "risk_status": "none", "reconcile_status": "unreconciled"}, "facts": {"payments": {"pi_back": {"at": 1, "claims": [{"amount_micro": 10000000, "currency": "USD"}], "charge_ids": ["ch_back"]}}, "charges": {"ch_back": "pi_back"}, "refunds": {"re_back": {"status": "succeeded", "seen": ["succeeded"], "amount_micro": 4000000, "charge_id": "ch_back"}}}, "moves": [{"kind": "credit", "amount_micro": 10000000, "operation_id": "op_reserved_back", "reason": "payment_succeeded"}, {"kind": "reversal", "amount_micro": 4000000, "operation_id": "op_acct_cho_3_back", "reason": "refund"}], "history": [{"statuses": {"status": "pending", "processing_status": "pending", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "api", "at": "2026-11-20T12:00:00Z", "reason": "order_created"}, {"statuses": {"status": "credited", "processing_status": "succeeded", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "provider_webhook", "at": "2026-11-20T12:00:00.007000Z", "reason": "payment_succeeded", "event_id": "evt_back_1", "operation_id": "op_reserved_back"}, {"statuses": {"status": "credited", "processing_status": "succeeded", "reversal_status": "partially_refunded", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "provider_webhook", "at": "2026-11-20T12:00:00.014000Z", "reason": "refund", "event_id": "evt_back_2", "operation_id": "op_acct_cho_3_back"}], "event_ids": ["evt_back_1", "evt_back_2"], "provider_object_ids": ["ch_back", "pi_back"], "reversal_refs": ["re_back"], "payment_id": "pi_back", "charge_id": "ch_back", "applied_event_id": "evt_back_2", "real_event_id": "evt_back_2", "real_event_type": "refund.created", "credited_at": "2026-11-20T12:00:00.007000Z", "refunded_at": "2026-11-20T12:00:00.014000Z", "reconcile_due_at": "2026-11-20T12:01:00.014000Z"}'),
	('acct_cho', 'ord_new', 1, 'cardprovider', 'pending', 'unreconciled', '2026-11-20 12:00:00+00', '2026-11-20 12:00:00+00', '2026-11-21 12:00:00+00', '2026-11-20 12:02:00+00', '{"order_id": "ord_new", "account_id": "acct_cho", "provider": "cardprovider", "amount_micro": 10000000, "currency": "USD", "operation_id": "op_reserved_new", "brand_id": "holdfast", "legal_entity_id": "holdfast", "merchant_of_record": "Holdfast", "provider_account_id": "holdfast", "created_at": "2026-11-20T12:00:00Z", "expires_at": "2026-11-21T12:00:00Z", "fx": {"base": "USD", "quote": "USD", "rate": "1", "source": "identity", "captured_at": "2026-11-20T12:00:00Z", "credits_per_unit": "1"}}', '{"statuses": {"status": "pending", "processing_status": "pending", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "history": [{"statuses": {"status": "pending", "processing_status": "pending", "reversal_status": "none", "risk_status": "none", "reconcile_status": "unreconciled"}, "source": "api", "at": "2026-11-20T12:00:00Z", "reason": "order_created"}]}');
insert into outbox values
	('acct_ada', 'evt_done_task.succeeded', 'task_done', 'task.succeeded', 'https://example.com', '2026-11-20 12:00:00+00', NULL, 'delivered', 1, '2026-11-20 12:00:00+00', 1, '2026-11-20 12:00:00+00', NULL, '{}'),
	('acct_ada', 'evt_done_task.assets_ready', 'task_done', 'task.assets_ready', 'https://example.com', '2026-11-20 12:00:00+00', NULL, 'delivered', 1, '2026-11-20 12:00:00+00', 1, '2026-11-20 12:00:00+00', NULL, '{}'),
	('acct_ada', 'evt_gone_task.canceled', 'task_gone', 'task.canceled', 'https://example.com', '2026-11-20 12:00:00+00', NULL, 'given_up', 1, '2026-11-20 12:00:00+00', 1, '2026-11-20 12:00:00+00', NULL, '{}');
insert into outbox_attempts values
	('acct_ada', 'evt_done_task.succeeded', 1, '2026-11-20 12:00:00+00', NULL, NULL, 7),
	('acct_ada', 'evt_done_task.assets_ready', 1, '2026-11-20 12:00:00+00', NULL, NULL, 7),
	('acct_ada', 'evt_gone_task.canceled', 1, '2026-11-20 12:00:00+00', NULL, NULL, 7);
insert into payment_events values
	('cardprovider', 'evt_paid_1', 'acct_cho', 'ord_paid', 'payment_intent.succeeded', '2026-11-20 12:00:00+00', 'applied', '\x7b7d'),
	('cardprovider', 'evt_back_1', 'acct_cho', 'ord_back', 'payment_intent.succeeded', '2026-11-20 12:00:00+00', 'applied', '\x7b7d'),
	('cardprovider', 'evt_back_2', 'acct_cho', 'ord_back', 'refund.created', '2026-11-20 12:00:00+00', 'applied', '\x7b7d');
insert into postings values
	('acct_ada', 1, 0, 'cash:sandbox', -10000000),
	('acct_ada', 1, 1, 'available', 10000000),
	('acct_ada', 2, 0, 'available', -3000000),
	('acct_ada', 2, 1, 'held', 3000000),
	('acct_ada', 3, 0, 'available', -1000000),
	('acct_ada', 3, 1, 'held', 1000000),
	('acct_ada', 4, 0, 'held', -3000000),
	('acct_ada', 4, 1, 'revenue', 2500000),
	('acct_ada', 4, 2, 'available', 500000),
	('acct_ada', 5, 0, 'available', -2000000),
	('acct_ada', 5, 1, 'held', 2000000),
	('acct_ada', 6, 0, 'held', -2000000),
	('acct_ada', 6, 1, 'available', 2000000),
	('acct_ada', 7, 0, 'available', 0),
	('acct_ada', 7, 1, 'held', 0),
	('acct_ada', 8, 0, 'held', 0),
	('acct_ada', 8, 1, 'revenue', 0),
	('acct_ada', 9, 0, 'available', -9000000),
	('acct_ada', 9, 1, 'cash:sandbox', 9000000),
	('acct_ada', 10, 0, 'cash:sandbox', -100000),
	('acct_ada', 10, 1, 'available', 100000),
	('acct_bob', 1, 0, 'cash:sandbox', -5000000),
	('acct_bob', 1, 1, 'available', 5000000),
	('acct_bob', 2, 0, 'available', -5000000),
	('acct_bob', 2, 1, 'held', 5000000),
	('acct_bob', 3, 0, 'held', -5000000),
	('acct_bob', 3, 1, 'available', 5000000),
	('acct_dan', 1, 0, 'adjustments', -2000000),
	('acct_dan', 1, 1, 'available', 2000000),
	('acct_dan', 2, 0, 'adjustments', 500000),
	('acct_dan', 2, 1, 'available', -500000),
	('acct_cho', 1, 0, 'cash:cardprovider', -10000000),
	('acct_cho', 1, 1, 'available', 10000000),
	('acct_cho', 2, 0, 'cash:cardprovider', -10000000),
	('acct_cho', 2, 1, 'available', 10000000),
	('acct_cho', 3, 0, 'available', -4000000),
	('acct_cho', 3, 1, 'cash:cardprovider', 4000000),
	('acct_eve', 1, 0, 'cash:sandbox', -3000000),
	('acct_eve', 1, 1, 'available', 3000000),
	('acct_eve', 2, 0, 'available', -2000000),
	('acct_eve', 2, 1, 'held', 2000000),
	('acct_eve', 3, 0, 'available', -500000),
	('acct_eve', 3, 1, 'held', 500000),
	('acct_eve', 4, 0, 'available', -2000000),
	('acct_eve', 4, 1, 'cash:sandbox', 2000000),
	('acct_fay', 1, 0, 'cash:sandbox', -1000000),
	('acct_fay', 1, 1, 'available', 1000000),
	('acct_fay', 2, 0, 'available', -1000000),
	('acct_fay', 2, 1, 'held', 1000000),
	('acct_fay', 3, 0, 'held', -1000000);
insert into postings values
	('acct_fay', 3, 1, 'revenue', 1000000),
	('acct_gus', 1, 0, 'cash:sandbox', -4000000),
	('acct_gus', 1, 1, 'available', 4000000),
	('acct_gus', 2, 0, 'available', -4000000),
	('acct_gus', 2, 1, 'held', 4000000);
insert into tasks values
	('acct_ada', 'task_open', 1, 'queued', 'studio/still', 'studio', '2026-11-20 12:00:00.014+00', '2026-11-20 12:00:00.014+00', NULL, false, '{"hold_id": "hold_open"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.014+00', 60, 900),
	('acct_ada', 'task_done', 1, 'succeeded', 'studio/still', 'studio', '2026-11-20 12:00:00.007+00', '2026-11-20 12:00:00.007+00', NULL, false, '{"hold_id": "hold_done", "webhook_url": "https://example.com", "webhook_events": ["task.succeeded", "task.assets_ready"]}', '{"completed_at": "2026-11-24T03:19:08.024769+00:00", "hosting": {"assets_ready_event": "sent"}}', '{}', NULL, NULL, '2026-11-20 12:00:00.007+00', 60, 900),
	('acct_ada', 'task_gone', 1, 'canceled', 'studio/still', 'studio', '2026-11-20 12:00:00.028+00', '2026-11-20 12:00:00.028+00', NULL, false, '{"hold_id": "hold_gone", "webhook_url": "https://example.com", "webhook_events": ["task.canceled"]}', '{"completed_at": "2026-11-24T03:19:08.058929+00:00", "hosting": {"assets_ready_event": "failed"}}', '{}', NULL, NULL, '2026-11-20 12:00:00.028+00', 60, 900),
	('acct_ada', 'task_free', 1, 'succeeded', 'studio/still', 'studio', '2026-11-20 12:00:00.042+00', '2026-11-20 12:00:00.042+00', NULL, false, '{"hold_id": "hold_free"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.042+00', 60, 900),
	('acct_bob', 'task_failed', 1, 'failed', 'studio/still', 'studio', '2026-11-20 12:00:00.007+00', '2026-11-20 12:00:00.007+00', NULL, false, '{"hold_id": "hold_failed"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.007+00', 60, 900),
	('acct_eve', 'task_eve1', 1, 'queued', 'studio/still', 'studio', '2026-11-20 12:00:00.007+00', '2026-11-20 12:00:00.007+00', NULL, false, '{"hold_id": "hold_eve1"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.007+00', 60, 900),
	('acct_eve', 'task_eve2', 1, 'queued', 'studio/still', 'studio', '2026-11-20 12:00:00.014+00', '2026-11-20 12:00:00.014+00', NULL, false, '{"hold_id": "hold_eve2"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.014+00', 60, 900),
	('acct_fay', 'task_fay1', 1, 'succeeded', 'studio/still', 'studio', '2026-11-20 12:00:00.007+00', '2026-11-20 12:00:00.007+00', NULL, false, '{"hold_id": "hold_fay1"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.007+00', 60, 900),
	('acct_gus', 'task_gus1', 1, 'queued', 'studio/still', 'studio', '2026-11-20 12:00:00.007+00', '2026-11-20 12:00:00.007+00', NULL, false, '{"hold_id": "hold_gus1"}', '{}', '{}', NULL, NULL, '2026-11-20 12:00:00.007+00', 60, 900);
insert into usage_entries values
	('acct_ada', 'task_open', '2026-11-20 12:00:00.014+00', 'studio/still', 'image', NULL, 'queued', 0, 0, 0, NULL, 0, NULL, NULL, '[]'),
	('acct_ada', 'task_done', '2026-11-20 12:00:00.007+00', 'studio/still', 'image', NULL, 'succeeded', 0, 0, 0, NULL, 2500000, NULL, 'op_acct_ada_4', '[]'),
	('acct_ada', 'task_gone', '2026-11-20 12:00:00.028+00', 'studio/still', 'image', NULL, 'canceled', 0, 0, 0, NULL, 0, NULL, 'op_acct_ada_6', '[]'),
	('acct_ada', 'task_free', '2026-11-20 12:00:00.042+00', 'studio/still', 'image', NULL, 'succeeded', 0, 0, 0, NULL, 0, NULL, 'op_acct_ada_8', '[]'),
	('acct_bob', 'task_failed', '2026-11-20 12:00:00.007+00', 'studio/still', 'image', NULL, 'failed', 0, 0, 0, NULL, 0, NULL, 'op_acct_bob_3', '[]'),
	('acct_eve', 'task_eve1', '2026-11-20 12:00:00.007+00', 'studio/still', 'image', NULL, 'queued', 0, 0, 0, NULL, 0, NULL, NULL, '[]'),
	('acct_eve', 'task_eve2', '2026-11-20 12:00:00.014+00', 'studio/still', 'image', NULL, 'queued', 0, 0, 0, NULL, 0, NULL, NULL, '[]'),
	('acct_fay', 'task_fay1', '2026-11-20 12:00:00.007+00', 'studio/still', 'image', NULL, 'succeeded', 0, 0, 0, NULL, 1000000, NULL, 'op_acct_fay_3', '[]'),
	('acct_gus', 'task_gus1', '2026-11-20 12:00:00.007+00', 'studio/still', 'image', NULL, 'queued', 0, 0, 0, NULL, 0, NULL, NULL, '[]');
SELECT pg_catalog.setval('public.reports_position_seq', 1, false);
