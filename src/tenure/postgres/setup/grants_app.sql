-- Let the app change rows. The owner owns all objects by now.
grant insert, update, delete on tenure.job, tenure.claim, tenure.key, tenure.outbox, tenure.worker, tenure.past_worker, tenure.published_queue
    to tenure_app;
grant insert, update, delete on tenure.schedule, tenure.schedule_fire, tenure.unique_job to tenure_app;
grant insert, update, delete on tenure.flow, tenure.flow_node, tenure.flow_end to tenure_app;
grant insert, update, delete on tenure.dataset, tenure.dataset_generation, tenure.dataset_batch, tenure.dataset_row,
    tenure.dataset_scope, tenure.dataset_pin, tenure.dataset_output, tenure.dataset_subscription, tenure.dataset_event,
    tenure.dataset_delivery, tenure.dataset_switch, tenure.dataset_switched to tenure_app;
grant insert, update, delete on tenure.operation, tenure.operation_item, tenure.operation_batch to tenure_app;
grant insert, update on tenure.dead_letter_group, tenure.dead_letter_cause to tenure_app;
grant insert, delete on tenure.dead_letter_change to tenure_app;
grant insert, update, delete on tenure.tally, tenure.tally_group, tenure.rollup, tenure.refusal to tenure_app;
grant insert on tenure.job_done, tenure.event, tenure.effect, tenure.rerun to tenure_app;
grant update (facts) on tenure.event to tenure_app;
grant update (compensated_at) on tenure.effect to tenure_app;
grant insert, update (revoked_at, revoked_by) on tenure.api_key to tenure_app;
grant insert, update (routed_at) on tenure.emitted to tenure_app;
grant update (faded) on tenure.range to tenure_app;
grant insert, update on tenure.dead_letter, tenure.job_type, tenure.queue to tenure_app;
grant usage on all sequences in schema tenure to tenure_app;
grant execute on function tenure.extend_ranges(integer) to tenure_app;
grant execute on function tenure.enqueue to tenure_app;
grant insert, update, delete on tenure.alarm, tenure.alarm_mute, tenure.alarm_notice, tenure.alarm_round to tenure_app;
