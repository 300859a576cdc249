-- The schema `custody` (DESIGN 11). The sum of migrations/*.sql, and a test says so: change both.
--
-- Lock order, everywhere: lane rows by lane_id, then run rows by run_id, then everything else of those runs.
-- No foreign keys to lane: they would lock the hottest row. SQLSTATEs of class CU are ours:
--   CU001 a row that never changes was to be changed     CU010 the fence of a lane failed
-- JSON documents are text: an escaped NUL may stand in them, which jsonb refuses.

create schema custody;

-- ---------------------------------------------------------------- time

create table custody.clock (
  one boolean primary key default true constraint clock_one check (one),
  shift interval not null
);
comment on table custody.clock is 'Empty in production. Tests steer the time of record with its one row.';

-- plpgsql keeps its plan; stable, so that a statement may ask once. The start of the statement, not of the
-- transaction: a deadline counts from no earlier than the moment its statement was sent.
create function custody.now() returns timestamptz language plpgsql stable as $$
begin
  return statement_timestamp() + coalesce((select shift from custody.clock), interval '0');
end $$;

-- ---------------------------------------------------------------- guards

create function custody.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'rows of custody.% never change', tg_table_name using errcode = 'CU001';
end $$;

create function custody.is_terminal(status text) returns boolean language sql immutable as $$
  select status in ('succeeded', 'partial', 'escalated', 'failed', 'cancelled', 'expired')
$$;

-- ---------------------------------------------------------------- the installation

create table custody.migration (
  number integer constraint migration_pk primary key,
  name text not null,
  sha256 text not null,
  applied_at timestamptz not null default statement_timestamp()
);

create table custody.store_identity (
  one boolean primary key default true constraint store_identity_one check (one),
  store_id uuid not null
);
insert into custody.store_identity (store_id) values (gen_random_uuid());
create trigger store_identity_stays before update or delete on custody.store_identity
  for each row execute function custody.refuse_change();

create table custody.deployment (
  one boolean primary key default true constraint deployment_one check (one),
  cluster_id text not null,
  group_id text not null,
  topics text not null,
  recorded_at timestamptz not null default custody.now()
);

-- ---------------------------------------------------------------- lanes

create table custody.lane (
  lane_id bigint generated always as identity constraint lane_pk primary key,
  cluster_id text not null,
  topic text not null,
  partition integer not null,
  topic_id text not null,
  epoch bigint not null default 0,
  owner uuid,
  adopted_by bigint,
  next_seq bigint not null default 1,
  input_offset bigint not null default 0,
  published_seq bigint not null default 0,
  published_hash bytea,
  cursor_partition integer not null,
  cursor_offset bigint not null default 0,
  last_alive timestamptz,
  unclean_ends integer not null default 0,
  went_back boolean not null default false,
  adopted_seq bigint,
  adopted_hash bytea,
  adopted_at timestamptz,
  adopted_reason text,
  constraint lane_key unique (cluster_id, topic, partition),
  constraint lane_floor check (published_seq < next_seq)
) with (fillfactor = 20);
comment on column custody.lane.owner is 'The fence. A random uuid of one incarnation; null: nobody.';
comment on column custody.lane.published_seq is 'The floor: at or below what Kafka''s cursor shows.';

-- ---------------------------------------------------------------- runs

create table custody.run (
  run_id text constraint run_pk primary key
    constraint run_id_form check (run_id ~ '^[A-Za-z0-9._:@-]{1,200}$'),
  correlation_id text not null constraint run_is_its_correlation check (correlation_id = run_id),
  lane_id bigint not null,
  session_id text,
  tenant text,
  subject_id text not null constraint run_subject check (subject_id <> ''),
  subject_tenant text,
  subject_actor text not null default '[]',
  decision_id text,
  route_id text not null,
  sent_digest bytea not null constraint run_sent_digest check (octet_length(sent_digest) = 32),
  sent_pin text not null,
  pin text not null,
  resolved text not null,
  input text not null,
  pinned_at timestamptz not null default custody.now(),
  expires_at timestamptz not null,
  start_ce_id text,
  start_ce_source text,
  traceparent text,
  parent text,
  forked_from text
);
comment on column custody.run.pin is 'As people see it: what was sent, with the versions that admission resolved.';
create index run_session on custody.run (session_id, pinned_at) where session_id is not null;
create index run_pinned_at on custody.run (pinned_at);
create trigger run_stays before update or delete on custody.run
  for each row execute function custody.refuse_change();

create table custody.checkpoint (
  run_id text constraint checkpoint_pk primary key constraint checkpoint_of_run references custody.run (run_id),
  lane_id bigint not null,
  version bigint not null,
  status text not null constraint checkpoint_status check (status in (
    'queued', 'running', 'waiting', 'parked', 'in_doubt',
    'succeeded', 'partial', 'escalated', 'failed', 'cancelled', 'expired')),
  loop_step integer not null,
  stage text not null,
  head_seq bigint not null,
  head_hash bytea not null constraint checkpoint_head check (octet_length(head_hash) = 32),
  attempts integer not null,
  parks integer not null,
  suspect_count integer not null,
  stop_requested text constraint checkpoint_stop check (stop_requested in ('cancel', 'expiry')),
  park_reason text constraint checkpoint_park_reason check (park_reason in (
    'policy_unavailable', 'contract_missing', 'model_unavailable', 'awaiting_auth', 'suspect', 'not_started',
    'operator')),
  wake_at timestamptz,
  pending text,
  not_after timestamptz,
  call_running boolean not null,
  doubt_seq bigint,
  last_tool text,
  working text,
  loaded text,
  format integer not null,
  expires_at timestamptz not null,
  updated_at timestamptz not null default custody.now(),
  constraint checkpoint_end_has_no_intent check (pending is null or not custody.is_terminal(status)),
  constraint checkpoint_wakes_when_resting check (wake_at is null or status in ('waiting', 'parked')),
  constraint checkpoint_not_after_of_intent check (not_after is null or pending is not null)
) with (fillfactor = 70);
comment on column custody.checkpoint.expires_at is 'Of the run; here for the index that finds what expired.';

-- No index holds a column that changes with every step (a HOT update costs a quarter of what it costs else):
-- status changes a few times in a run's life, wake_at only with it.
create index checkpoint_driven on custody.checkpoint (lane_id, run_id) where status in ('queued', 'running');
create index checkpoint_wakes on custody.checkpoint (lane_id, wake_at)
  where wake_at is not null and status in ('waiting', 'parked');
create index checkpoint_expires on custody.checkpoint (lane_id, expires_at)
  where status in ('queued', 'running', 'waiting', 'parked');

create index checkpoint_in_doubt on custody.checkpoint (lane_id) where status = 'in_doubt';

create function custody.refuse_after_end() returns trigger language plpgsql as $$
begin
  raise exception 'a terminal status absorbs' using errcode = 'CU001';
end $$;
create trigger checkpoint_ends_once before update of status on custody.checkpoint for each row
  when (old.status <> new.status and custody.is_terminal(old.status)) execute function custody.refuse_after_end();

-- ---------------------------------------------------------------- steps: record, audit log and outbox in one

create table custody.step (
  run_id text not null,
  event_seq bigint not null constraint step_counts_from_one check (event_seq > 0),
  lane_id bigint not null,
  lane_seq bigint not null,
  kind text not null constraint step_kind check (kind in (
    'pinned', 'decided', 'intent', 'tool_result', 'inference', 'stage_begun', 'stage_ended', 'waiting', 'answered',
    'parked', 'resumed', 'in_doubt', 'resolved', 'signal_refused', 'repinned', 'erased', 'outcome')),
  loop_step integer not null,
  schema_fingerprint bytea not null,
  hash bytea not null constraint step_hash check (octet_length(hash) = 32),
  body bytea not null,
  payload text,
  salt bytea,
  record text,
  signature bytea,
  recorded_at timestamptz not null default custody.now(),
  causation_id text,
  constraint step_pk primary key (run_id, event_seq),
  constraint step_lane_seq unique (lane_id, lane_seq)
);

-- Append only, but for erasure: payload, salt and record may become null, nothing else may change.
create function custody.refuse_rewrite() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' then
    if (new.payload is null or new.payload is not distinct from old.payload)
       and (new.salt is null or new.salt is not distinct from old.salt)
       and (new.record is null or new.record is not distinct from old.record) then
      old.payload := new.payload;
      old.salt := new.salt;
      old.record := new.record;
      if old is not distinct from new then
        return new;
      end if;
    end if;
  end if;
  raise exception 'steps are appended, not rewritten' using errcode = 'CU001';
end $$;
create trigger step_stays before update or delete on custody.step
  for each row execute function custody.refuse_rewrite();

-- ---------------------------------------------------------------- signals and dead letters

create table custody.signal (
  signal_id bigint generated always as identity constraint signal_pk primary key,
  run_id text not null constraint signal_run_id_form check (run_id ~ '^[A-Za-z0-9._:@-]{1,200}$'),
  kind text not null constraint signal_kind check (kind in (
    'continue', 'signal', 'cancel', 'resolve', 'park', 'unpark', 'tool_result')),
  body text not null,
  source text not null constraint signal_source check (source in ('kafka', 'operator', 'tool')),
  dedupe_source text,
  dedupe_id text,
  dedupe_digest bytea,
  causation_id text,
  created_at timestamptz not null default custody.now(),
  recorded_at timestamptz,
  bound boolean not null,
  consumed_at timestamptz,
  lane_id bigint,
  topic_id text,
  record_offset bigint,
  raw_key bytea,
  raw_value bytea,
  raw_headers text,
  constraint signal_held_has_its_place check (bound or (lane_id is not null and record_offset is not null))
);
comment on column custody.signal.bound is 'Its run exists. False: held until the start comes or the orphan sweep.';
comment on column custody.signal.lane_id is 'Where the record arrived, not where its run lives.';
create unique index signal_once on custody.signal (run_id, dedupe_source, dedupe_id, dedupe_digest)
  nulls not distinct where dedupe_id is not null;
create index signal_unconsumed on custody.signal (run_id) where consumed_at is null and bound;
create index signal_held on custody.signal (run_id) where consumed_at is null and not bound;
create index signal_held_since on custody.signal (created_at) where consumed_at is null and not bound;

create table custody.dead_letter (
  dead_letter_id uuid constraint dead_letter_pk primary key,
  lane_id bigint not null,
  lane_seq bigint not null,
  topic_id text not null,
  record_offset bigint not null,
  reason text not null constraint dead_letter_reason check (reason in (
    'undecodable', 'schema_unknown', 'key_mismatch', 'invalid_event', 'too_large', 'pin_conflict', 'stale_start',
    'expired_on_arrival', 'foreign_target', 'orphan_resume', 'subject_mismatch', 'token_refused',
    'credential_in_body', 'contract_unknown', 'route_pin_mismatch', 'internal')),
  detail text not null,
  key bytea,
  value bytea,
  headers text not null,
  hash bytea not null constraint dead_letter_hash check (octet_length(hash) = 32),
  run_id text,
  recorded_at timestamptz not null default custody.now(),
  record_timestamp timestamptz,
  constraint dead_letter_place unique (lane_id, topic_id, record_offset),
  constraint dead_letter_lane_seq unique (lane_id, lane_seq)
);
create index dead_letter_run on custody.dead_letter (run_id) where run_id is not null;
create index dead_letter_recorded_at on custody.dead_letter (recorded_at);

-- ---------------------------------------------------------------- contracts, tombstones

create table custody.contract (
  kind text not null constraint contract_kind check (kind in ('manifest', 'workflow', 'policy')),
  name text not null,
  version text not null,
  body text not null,
  digest text not null,
  published_seq bigint generated always as identity,
  published_at timestamptz not null default custody.now(),
  constraint contract_pk primary key (kind, name, version)
);
create trigger contract_stays before update or delete on custody.contract
  for each row execute function custody.refuse_change();

create table custody.tombstone (
  run_id text constraint tombstone_pk primary key,
  lane_id bigint not null,
  sent_digest bytea not null,
  status text not null constraint tombstone_ended check (custody.is_terminal(status)),
  subject_id text not null,
  subject_tenant text,
  swept_at timestamptz not null default custody.now()
);

-- ---------------------------------------------------------------- the fence's word

-- Must stand where it is called only when the fence failed; volatile, so that it is not called at planning.
-- Reads the lane again: after a wait the statement's snapshot is older than the row.
create function custody.refuse_fence(asked bigint) returns bigint language plpgsql volatile as $$
declare
  stands custody.lane;
begin
  select l.* into stands from custody.lane l where l.lane_id = asked;
  raise exception 'lane % has another owner, generation or offset', asked using
    errcode = 'CU010',
    detail = json_build_object('owner', stands.owner, 'epoch', stands.epoch, 'topic_id', stands.topic_id,
                               'input_offset', stands.input_offset)::text;
end $$;

-- ---------------------------------------------------------------- what people see (DESIGN 16)

-- Built as text: every function that takes JSON apart refuses an escaped NUL.
create view custody.runs as
select r.run_id, r.correlation_id, r.session_id, c.status, r.pinned_at, r.expires_at,
       (left(r.pin, -1) || ',"loop_step":' || c.loop_step || '}')::json as pin,
       ('{' || coalesce('"last_tool":' || to_json(c.last_tool) || ',', '')
            || '"working":' || coalesce(c.working, '{}') || '}')::json as checkpoint,
       r.tenant, r.subject_id, r.subject_tenant, r.route_id, r.lane_id, c.park_reason, c.stop_requested, c.wake_at,
       c.not_after, c.updated_at
from custody.run r join custody.checkpoint c on c.run_id = r.run_id;
