-- Every statement of the store. `$n` where the driver's own adaptation is passed by (arrays in binary, several
-- statements in one flush), `%(name)s` elsewhere. Lock order: schema.sql says it on top.

-- name: configure
-- What every connection is told before anything else. A transaction that its client leaves open is ended, or it
-- would hold the lane for as long as the client is frozen.
select set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, false),
       set_config('lock_timeout', %(lock_ms)s::text, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('timezone', 'UTC', false),
       case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', false) end,
       case when current_setting('server_version_num')::int >= 170000
            then set_config('transaction_timeout', %(transaction_ms)s::text, false) end

-- name: end_blockers
-- Backends that block `pid` and wait for their client: frozen inside a transaction, or dead.
select pg_terminate_backend(a.pid)
from unnest(pg_blocking_pids(%(pid)s::int)) b(pid) join pg_stat_activity a on a.pid = b.pid
where a.wait_event_type = 'Client' and a.wait_event = 'ClientRead'

-- name: now
select custody.now() as now

-- name: store_id
select store_id from custody.store_identity

-- ================================================================ the hot path: group commit (DESIGN 6)

-- name: commit_group
-- One autocommit statement. `la` fences, `lk` locks the lanes in order and checks the owner again on the newest row
-- after a wait, `u` compares and sets each checkpoint, `nu` numbers the step rows of survivors densely. A lane
-- that is missing from the answer was refused (or, with skip locked, busy); `refused` lists refused rows of the others.
with t as materialized (select custody.now() as now),
la as (
  select * from unnest($1::int8[], $2::uuid[], $3::int8[]) x(lane_id, owner, last_seen)),
lk as materialized (
  select l.lane_id, l.epoch, l.topic_id, l.input_offset, l.next_seq, l.went_back, la.last_seen >= l.next_seq as back
    from custody.lane l join la on la.lane_id = l.lane_id and la.owner = l.owner
   order by l.lane_id for no key update of l /* skip locked */),
ck as (
  select * from unnest($4::int8[], $5::text[], $6::int8[], $7::text[], $8::int4[], $9::text[], $10::int8[],
      $11::bytea[], $12::int4[], $13::int4[], $14::int4[], $15::text[], $16::text[], $17::bool[], $18::float8[],
      $19::text[], $20::bool[], $21::float8[], $22::bool[], $23::int8[], $24::text[], $25::text[], $26::bool[],
      $27::text[], $28::int4[], $29::bool[])
    with ordinality x(lane_id, run_id, version, status, loop_step, stage, head_seq, head_hash, attempts, parks,
      suspect_count, stop_requested, park_reason, wake_keep, wake_in_s, pending, not_after_keep, not_after_in_s,
      call_running, doubt_seq, last_tool, working, working_changed, loaded, format, after_end, ord)),
g as (
  select * from unnest($42::int4[], $43::int8[]) x(ord, signal_id)),
taken as materialized (
  select g.ord from g left join custody.signal s on s.signal_id = g.signal_id and s.consumed_at is null
   where s.signal_id is null),
u as (
  update custody.checkpoint c
     set version = c.version + 1, status = ck.status, loop_step = ck.loop_step, stage = ck.stage,
         head_seq = ck.head_seq, head_hash = ck.head_hash, attempts = ck.attempts, parks = ck.parks,
         suspect_count = ck.suspect_count, stop_requested = ck.stop_requested, park_reason = ck.park_reason,
         wake_at = case when ck.status not in ('waiting', 'parked') then null
                        when ck.wake_keep then c.wake_at
                        else t.now + make_interval(secs => ck.wake_in_s) end,
         pending = ck.pending,
         not_after = case when ck.pending is null then null
                          when ck.not_after_keep then c.not_after
                          else t.now + make_interval(secs => ck.not_after_in_s) end,
         call_running = ck.call_running, doubt_seq = ck.doubt_seq, last_tool = ck.last_tool,
         working = case when ck.working_changed then ck.working else c.working end,
         loaded = ck.loaded, format = ck.format, updated_at = t.now
    from ck join lk on lk.lane_id = ck.lane_id cross join t
   where c.run_id = ck.run_id and c.lane_id = ck.lane_id and c.version = ck.version
     and (c.status not in ('succeeded', 'partial', 'escalated', 'failed', 'cancelled', 'expired')
          or (ck.after_end and ck.status = c.status))
     and ck.ord not in (select taken.ord from taken)
  returning ck.ord, c.lane_id, c.run_id),
st as (
  select * from unnest($30::int4[], $31::int8[], $32::text[], $33::int4[], $34::bytea[], $35::bytea[], $36::bytea[],
      $37::text[], $38::bytea[], $39::text[], $40::bytea[], $41::text[])
    with ordinality x(ord, event_seq, kind, loop_step, schema_fingerprint, hash, body, payload, salt, record,
      signature, causation_id, place)),
nu as (
  select st.*, u.run_id, u.lane_id,
         lk.next_seq - 1 + row_number() over (partition by u.lane_id order by st.place) as lane_seq
    from st join u on u.ord = st.ord join lk on lk.lane_id = u.lane_id),
ins as (
  insert into custody.step (run_id, event_seq, lane_id, lane_seq, kind, loop_step, schema_fingerprint, hash, body,
      payload, salt, record, signature, recorded_at, causation_id)
  select nu.run_id, nu.event_seq, nu.lane_id, nu.lane_seq, nu.kind, nu.loop_step, nu.schema_fingerprint, nu.hash,
         nu.body, nu.payload, nu.salt, nu.record, nu.signature, t.now,
         coalesce(nu.causation_id, (select max(s.causation_id) from g join custody.signal s
                                     on s.signal_id = g.signal_id where g.ord = nu.ord))
    from nu cross join t),
eaten as (
  update custody.signal s set consumed_at = t.now, bound = true
    from g join u on u.ord = g.ord cross join t
   where s.signal_id = g.signal_id and s.run_id = u.run_id and s.consumed_at is null),
nn as (
  select lane_id, count(*) as n from nu group by lane_id),
mv as (
  update custody.lane l set next_seq = l.next_seq + coalesce(nn.n, 0), went_back = l.went_back or lk.back
    from lk left join nn on nn.lane_id = lk.lane_id
   where l.lane_id = lk.lane_id and (nn.n > 0 or (lk.back and not l.went_back)))
select lk.lane_id, lk.epoch, lk.topic_id, lk.input_offset, lk.next_seq,
       coalesce((select nn.n from nn where nn.lane_id = lk.lane_id), 0), lk.went_back or lk.back,
       array(select ck.ord::int4 from ck where ck.lane_id = lk.lane_id
             except select u.ord::int4 from u where u.lane_id = lk.lane_id)
  from lk

-- name: settle_owner
-- A new owner for lanes whose COMMIT was lost: waits for every straggler and fences it. $1, $2: lane and each owner
-- that this incarnation may stand under; $3, $4, $5: lane, new owner, last lane_seq seen.
with mine as (
  select * from unnest($1::int8[], $2::uuid[]) x(lane_id, owner)),
fresh as (
  select * from unnest($3::int8[], $4::uuid[], $5::int8[]) x(lane_id, owner, last_seen)),
lk as materialized (
  select l.lane_id, l.next_seq, f.owner, f.last_seen
    from custody.lane l join fresh f on f.lane_id = l.lane_id join mine m on m.lane_id = l.lane_id and m.owner = l.owner
   order by l.lane_id for no key update of l)
update custody.lane l
   set owner = lk.owner, epoch = l.epoch + 1, last_alive = custody.now(),
       went_back = l.went_back or lk.last_seen >= l.next_seq
  from lk where l.lane_id = lk.lane_id
returning l.lane_id, l.epoch, l.topic_id, l.input_offset, l.next_seq, l.went_back

-- name: settle_rows
-- In the same transaction, after the lane is locked: which of the rows are there? Commits with an event by its hash,
-- the others by version + 1.
select q.ord
  from unnest($1::int4[], $2::text[], $3::int8[], $4::bytea[], $5::int8[]) q(ord, run_id, event_seq, hash, version)
 where case when q.hash is null
            then exists (select from custody.checkpoint c where c.run_id = q.run_id and c.version = q.version + 1)
            else exists (select from custody.step s
                          where s.run_id = q.run_id and s.event_seq = q.event_seq and s.hash = q.hash) end

-- ================================================================ admission (DESIGN 5), two round trips

-- name: insert_runs
-- Round trip 1, first statement: in order of run_id, or opposite orders deadlock. An id with a tombstone is not new.
with n as (
  select * from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
      $9::text[], $10::bytea[], $11::text[], $12::text[], $13::text[], $14::text[], $15::timestamptz[], $16::text[],
      $17::text[], $18::text[], $19::text[], $20::text[],
      $21::text[], $22::int4[], $23::text[], $24::int8[], $25::bytea[], $26::text[], $27::text[],
      $28::timestamptz[], $29::int4[], $30::int8[], $31::int4[], $32::text[])
    x(run_id, session_id, tenant, subject_id, subject_tenant, subject_actor, decision_id, route_id, sent_digest,
      sent_pin, pin, resolved, input, expires_at, start_ce_id, start_ce_source, traceparent, parent, forked_from,
      status, loop_step, stage, head_seq, head_hash, park_reason, loaded, wake_at, format, version, parks,
      stop_requested)),
r as (
  insert into custody.run (run_id, correlation_id, lane_id, session_id, tenant, subject_id, subject_tenant,
      subject_actor, decision_id, route_id, sent_digest, sent_pin, pin, resolved, input, expires_at, start_ce_id,
      start_ce_source, traceparent, parent, forked_from)
  select n.run_id, n.run_id, $1, n.session_id, n.tenant, n.subject_id, n.subject_tenant, n.subject_actor,
         n.decision_id, n.route_id, n.sent_digest, n.sent_pin, n.pin, n.resolved, n.input, n.expires_at,
         n.start_ce_id, n.start_ce_source, n.traceparent, n.parent, n.forked_from
    from n where not exists (select from custody.tombstone d where d.run_id = n.run_id)
   order by n.run_id
  on conflict (run_id) do nothing
  returning run_id),
c as (
  insert into custody.checkpoint (run_id, lane_id, version, status, loop_step, stage, head_seq, head_hash, attempts,
      parks, suspect_count, stop_requested, park_reason, wake_at, call_running, loaded, format, expires_at)
  select n.run_id, $1, n.version, n.status, n.loop_step, n.stage, n.head_seq, n.head_hash, 0, n.parks, 0,
         n.stop_requested, n.park_reason, case when n.status in ('waiting', 'parked') then n.wake_at end, false,
         n.loaded, n.format, n.expires_at
    from n join r on r.run_id = n.run_id)
select r.run_id from r

-- name: known_runs
-- Round trip 1, second statement: its snapshot is newer than the insert's, so whoever made us find a conflict is seen.
select r.run_id, r.lane_id, r.sent_digest, c.status, r.subject_id, r.subject_tenant, false as swept
  from custody.run r join custody.checkpoint c on c.run_id = r.run_id
 where r.run_id = any($1::text[])
union all
select d.run_id, d.lane_id, d.sent_digest, d.status, d.subject_id, d.subject_tenant, true
  from custody.tombstone d where d.run_id = any($1::text[])

-- name: known_runs_read
select r.run_id, r.lane_id, r.sent_digest, c.status, r.subject_id, r.subject_tenant, false as swept
  from custody.run r join custody.checkpoint c on c.run_id = r.run_id
 where r.run_id = any(%(run_ids)s::text[])
union all
select d.run_id, d.lane_id, d.sent_digest, d.status, d.subject_id, d.subject_tenant, true
  from custody.tombstone d where d.run_id = any(%(run_ids)s::text[])

-- name: admit
-- Round trip 2, flushed together with COMMIT. $1 lane, $2 owner, $3 topic_id, $4 first offset, $5 next offset,
-- $6 last lane_seq seen. Numbers steps and dead letters in the batch's order.
with t as materialized (select custody.now() as now),
lk as materialized (
  select l.lane_id, l.epoch, l.next_seq, l.went_back, $6::int8 >= l.next_seq as back
    from custody.lane l
   where l.lane_id = $1::int8 and l.owner = $2::uuid and l.topic_id = $3::text and l.input_offset = $4::int8
     for no key update),
s as (
  select * from unnest($7::int4[], $8::text[], $9::int8[], $10::text[], $11::int4[], $12::bytea[], $13::bytea[],
      $14::bytea[], $15::text[], $16::bytea[], $17::text[], $18::bytea[], $19::text[])
    x(place, run_id, event_seq, kind, loop_step, schema_fingerprint, hash, body, payload, salt, record, signature,
      causation_id)),
d as (
  select * from unnest($20::int4[], $21::uuid[], $22::text[], $23::int8[], $24::text[], $25::text[], $26::bytea[],
      $27::bytea[], $28::text[], $29::bytea[], $30::text[], $31::timestamptz[])
    x(place, dead_letter_id, topic_id, record_offset, reason, detail, key, value, headers, hash, run_id,
      record_timestamp)
   where not exists (select from custody.dead_letter o
                      where o.lane_id = $1::int8 and o.topic_id = x.topic_id and o.record_offset = x.record_offset)),
num as (
  select a.place, row_number() over (order by a.place) - 1 as off
    from (select place from s union all select place from d) a),
ins as (
  insert into custody.step (run_id, event_seq, lane_id, lane_seq, kind, loop_step, schema_fingerprint, hash, body,
      payload, salt, record, signature, recorded_at, causation_id)
  select s.run_id, s.event_seq, lk.lane_id, lk.next_seq + num.off, s.kind, s.loop_step, s.schema_fingerprint, s.hash,
         s.body, s.payload, s.salt, s.record, s.signature, t.now, s.causation_id
    from s join num on num.place = s.place cross join lk cross join t),
dl as (
  insert into custody.dead_letter (dead_letter_id, lane_id, lane_seq, topic_id, record_offset, reason, detail, key,
      value, headers, hash, run_id, recorded_at, record_timestamp)
  select d.dead_letter_id, lk.lane_id, lk.next_seq + num.off, d.topic_id, d.record_offset, d.reason, d.detail, d.key,
         d.value, d.headers, d.hash, d.run_id, t.now, d.record_timestamp
    from d join num on num.place = d.place cross join lk cross join t),
sg as (
  insert into custody.signal (run_id, kind, body, source, dedupe_source, dedupe_id, dedupe_digest, causation_id,
      created_at, recorded_at, bound, lane_id, topic_id, record_offset, raw_key, raw_value, raw_headers)
  select x.run_id, x.kind, x.body, x.source, x.dedupe_source, x.dedupe_id, x.dedupe_digest, x.causation_id, t.now,
         x.recorded_at, not x.held, lk.lane_id, x.topic_id, x.record_offset, x.raw_key, x.raw_value, x.raw_headers
    from unnest($32::text[], $33::text[], $34::text[], $35::text[], $36::text[], $37::text[], $38::bytea[],
        $39::text[], $40::timestamptz[], $41::bool[], $42::text[], $43::int8[], $44::bytea[], $45::bytea[],
        $46::text[])
      with ordinality x(run_id, kind, body, source, dedupe_source, dedupe_id, dedupe_digest, causation_id,
        recorded_at, held, topic_id, record_offset, raw_key, raw_value, raw_headers, place)
   cross join lk cross join t
   order by x.run_id, x.dedupe_source, x.dedupe_id, x.place
  on conflict (run_id, dedupe_source, dedupe_id, dedupe_digest) where dedupe_id is not null do nothing
  returning signal_id),
bind as (
  update custody.signal h set bound = true
   where h.run_id = any($47::text[]) and h.consumed_at is null and not h.bound and exists (select from lk)),
mv as (
  update custody.lane l
     set next_seq = l.next_seq + (select count(*) from num), input_offset = $5::int8,
         went_back = l.went_back or lk.back
    from lk where l.lane_id = lk.lane_id)
select coalesce((select lk.next_seq from lk), custody.refuse_fence($1::int8)), (select lk.epoch from lk),
       (select lk.went_back or lk.back from lk), (select count(*) from num), (select count(*) from sg),
       (select count(*) from d)

-- ================================================================ lanes (DESIGN 4)

-- name: ensure_lane
-- The generation of a lane that is there is left alone: set_topic_generation changes it, fenced.
insert into custody.lane (cluster_id, topic, partition, topic_id, cursor_partition)
values (%(cluster_id)s, %(topic)s, %(partition)s, %(topic_id)s, %(cursor_partition)s)
on conflict (cluster_id, topic, partition) do nothing

-- name: lane_by_key
select l.* from custody.lane l
 where l.cluster_id = %(cluster_id)s and l.topic = %(topic)s and l.partition = %(partition)s

-- name: lane_by_id
select l.* from custody.lane l where l.lane_id = %(lane_id)s

-- name: acquire
-- Autocommit. `epoch = <the one read before>`: a lost try that executes late finds nothing.
update custody.lane l
   set epoch = l.epoch + 1, owner = %(owner)s, last_alive = custody.now(), adopted_by = %(adopter)s,
       unclean_ends = l.unclean_ends + case when l.owner is null or l.owner = any(%(mine)s::uuid[]) then 0 else 1 end
 where l.lane_id = %(lane_id)s and l.epoch = %(epoch)s
returning l.*

-- name: set_topic_generation
update custody.lane l
   set topic_id = %(topic_id)s, input_offset = %(input_offset)s,
       went_back = l.went_back or %(last_seen)s >= l.next_seq
 where l.lane_id = %(lane_id)s and l.owner = %(owner)s
returning l.*

-- name: heartbeat
update custody.lane l
   set last_alive = custody.now(), unclean_ends = case when %(clear_unclean)s then 0 else l.unclean_ends end,
       went_back = l.went_back or %(last_seen)s >= l.next_seq
 where l.lane_id = %(lane_id)s and l.owner = %(owner)s
returning l.*

-- name: release
update custody.lane l set owner = null where l.lane_id = %(lane_id)s and l.owner = any(%(owners)s::uuid[])

-- name: save_floor
-- Values are set, and only upwards: a lost floor may be written after its retry.
update custody.lane l
   set published_seq = greatest(l.published_seq, %(seq)s),
       published_hash = case when %(seq)s >= l.published_seq then %(hash)s else l.published_hash end,
       cursor_offset = case when %(seq)s >= l.published_seq then %(cursor_offset)s else l.cursor_offset end,
       -- "none" was accepted once; from the first cursor on, losing it again is a new question
       adopted_seq = case when l.adopted_seq = 0 and %(seq)s > l.published_seq then null else l.adopted_seq end,
       went_back = l.went_back or %(last_seen)s >= l.next_seq
 where l.lane_id = %(lane_id)s and l.owner = %(owner)s
returning l.*

-- name: mark_went_back
update custody.lane l set went_back = true where l.lane_id = %(lane_id)s and l.owner = %(owner)s returning l.*

-- name: adopt_floor
-- An operator's word: what Kafka's cursor shows is accepted (no cursor: 0), publication goes on after `floor`, else
-- after the cursor, else where it stood; number and epoch are lifted above what Kafka shows. The owner is fenced: what it has in memory was made before.
update custody.lane l
   set adopted_seq = coalesce(%(seq)s::int8, 0), adopted_hash = %(hash)s, adopted_at = custody.now(),
       adopted_reason = %(reason)s,
       published_seq = coalesce(%(floor)s::int8, %(seq)s::int8, l.published_seq),
       published_hash = coalesce(
         (select s.hash from custody.step s where s.lane_id = l.lane_id
           and s.lane_seq = coalesce(%(floor)s::int8, %(seq)s::int8, l.published_seq)),
         (select d.hash from custody.dead_letter d where d.lane_id = l.lane_id
           and d.lane_seq = coalesce(%(floor)s::int8, %(seq)s::int8, l.published_seq))),
       next_seq = greatest(l.next_seq, %(seq)s::int8 + 1, %(floor)s::int8 + 1),
       epoch = greatest(l.epoch, %(epoch)s) + 1, owner = null, went_back = false
 where l.lane_id = %(lane_id)s
returning l.*

-- ================================================================ signals and recovery

-- name: insert_signal
-- NOTIFY stands here and never in the group commit (it halves the commit rate). A run that ended hears late tool
-- results only; a resolve names the in_doubt that its writer saw, and a "not done" waits for not_after and the call.
with t as materialized (select custody.now() as now),
c as (
  select c.status, c.doubt_seq, c.not_after > t.now as too_early, c.call_running
    from custody.checkpoint c cross join t where c.run_id = %(run_id)s),
ok as (
  select 1 from c
   where (%(kind)s = 'tool_result' or not custody.is_terminal(c.status))
     and (%(kind)s <> 'resolve'
          or (c.status = 'in_doubt' and c.doubt_seq = %(event_seq)s::int8
              and (%(done)s::bool or not (coalesce(c.too_early, false) or c.call_running))))),
i as (
  insert into custody.signal (run_id, kind, body, source, dedupe_source, dedupe_id, dedupe_digest, causation_id,
      created_at, recorded_at, bound)
  select %(run_id)s, %(kind)s, %(body)s, %(source)s, %(dedupe_source)s, %(dedupe_id)s, %(dedupe_digest)s,
         %(causation_id)s, t.now, %(recorded_at)s::timestamptz, true
    from ok cross join t
  on conflict (run_id, dedupe_source, dedupe_id, dedupe_digest) where dedupe_id is not null do nothing
  returning signal_id)
select (select i.signal_id from i) as signal_id, exists (select from ok) as allowed, c.status, c.doubt_seq,
       c.too_early, c.call_running,
       case when exists (select from i) then pg_notify('custody_signal', %(run_id)s) end as told
  from (select 1) one left join c on true

-- name: listen
listen custody_signal

-- name: due_runs
-- Ranks: 0 woken, expired and cancelled; 1 answered; 2 running; 3 queued. Signals count also while they are held, for a
-- moment: a resume and its start on two lanes may each have missed the other's uncommitted row.
with t as materialized (select custody.now() as now),
lanes as (select unnest(%(lanes)s::int8[]) as lane_id),
found as (
  select w.run_id, w.lane_id, 0 as rank
    from lanes cross join t cross join lateral (
      select c.run_id, c.lane_id from custody.checkpoint c
       where c.lane_id = lanes.lane_id and c.status in ('waiting', 'parked') and c.wake_at is not null
         and c.wake_at <= t.now and c.run_id <> all(%(live)s::text[])
       order by c.wake_at limit %(limit)s) w
  union all
  select e.run_id, e.lane_id, 0
    from lanes cross join t cross join lateral (
      select c.run_id, c.lane_id from custody.checkpoint c
       where c.lane_id = lanes.lane_id and c.status in ('queued', 'running', 'waiting', 'parked')
         and c.expires_at <= t.now and c.run_id <> all(%(live)s::text[])
       order by c.expires_at limit %(limit)s) e
  union all
  select c.run_id, c.lane_id, case when s.kind = 'cancel' then 0 else 1 end
    from custody.signal s join custody.checkpoint c on c.run_id = s.run_id
   where s.consumed_at is null and s.bound and c.lane_id = any(%(lanes)s::int8[])
     and c.run_id <> all(%(live)s::text[]) and (s.kind = 'tool_result' or not custody.is_terminal(c.status))
  union all
  select c.run_id, c.lane_id, case when s.kind = 'cancel' then 0 else 1 end
    from t cross join custody.signal s join custody.checkpoint c on c.run_id = s.run_id
   where s.consumed_at is null and not s.bound and s.created_at > t.now - interval '2 minutes'
     and c.lane_id = any(%(lanes)s::int8[]) and c.run_id <> all(%(live)s::text[])
     and not custody.is_terminal(c.status)
  union all
  select d.run_id, d.lane_id, case d.status when 'running' then 2 else 3 end
    from lanes cross join lateral (
      select c.run_id, c.lane_id, c.status from custody.checkpoint c
       where c.lane_id = lanes.lane_id and c.status in ('queued', 'running') and c.run_id <> all(%(live)s::text[])
       order by c.run_id limit %(limit)s) d)
select f.run_id, min(f.lane_id) as lane_id
  from found f group by f.run_id order by min(f.rank), f.run_id limit %(limit)s

-- name: load_runs
select r.*, c.version, c.status, c.loop_step, c.stage, c.head_seq, c.head_hash, c.attempts, c.parks, c.suspect_count,
       c.stop_requested, c.park_reason, c.wake_at, c.pending, c.not_after, c.call_running, c.doubt_seq, c.last_tool,
       c.working, c.loaded, c.format, custody.now() as db_now
  from custody.run r join custody.checkpoint c on c.run_id = r.run_id
 where r.run_id = any(%(run_ids)s::text[])

-- name: load_steps
select s.run_id, s.event_seq, s.kind, s.loop_step, s.record
  from custody.step s where s.run_id = any(%(run_ids)s::text[]) order by s.run_id, s.event_seq

-- name: load_signals
-- Of runs that are there, held or not.
select s.signal_id, s.run_id, s.kind, s.body, s.causation_id, s.created_at, s.recorded_at
  from custody.signal s
 where s.run_id = any(%(run_ids)s::text[]) and s.consumed_at is null order by s.signal_id

-- ================================================================ publication (DESIGN 6)

-- name: outbox
-- Steps and dead letters in one statement: two snapshots could leave a gap.
select * from (
  (select s.lane_seq, s.run_id, s.event_seq, s.kind, s.schema_fingerprint, s.body, s.hash, s.salt, s.payload,
          s.signature, s.recorded_at, s.causation_id, null::uuid as dead_letter_id, null as reason, null as detail,
          null as topic, null::int as partition, null::int8 as record_offset, null::bytea as key,
          null::bytea as value, null as headers, null::timestamptz as record_timestamp
     from custody.step s where s.lane_id = %(lane_id)s and s.lane_seq > %(after)s order by s.lane_seq limit %(limit)s)
  union all
  (select d.lane_seq, d.run_id, null, null, null, null, d.hash, null, null, null, d.recorded_at, null,
          d.dead_letter_id, d.reason, d.detail, l.topic, l.partition, d.record_offset, d.key, d.value, d.headers,
          d.record_timestamp
     from custody.dead_letter d join custody.lane l on l.lane_id = d.lane_id
    where d.lane_id = %(lane_id)s and d.lane_seq > %(after)s order by d.lane_seq limit %(limit)s)) o
order by o.lane_seq limit %(limit)s

-- name: check_cursor
select l.owner, l.epoch, l.published_seq, l.published_hash, l.next_seq, l.went_back, l.adopted_seq, l.adopted_hash,
       coalesce(
         (select s.hash from custody.step s where s.lane_id = l.lane_id and s.lane_seq = %(seq)s::int8),
         (select d.hash from custody.dead_letter d where d.lane_id = l.lane_id and d.lane_seq = %(seq)s::int8)
       ) as row_hash
  from custody.lane l where l.lane_id = %(lane_id)s

-- ================================================================ contracts (DESIGN 10)

-- name: publish_contract
insert into custody.contract (kind, name, version, body, digest)
values (%(kind)s, %(name)s, %(version)s, %(body)s, %(digest)s)
on conflict (kind, name, version) do nothing
returning published_seq

-- name: load_contract
select c.body, c.digest from custody.contract c
 where c.kind = %(kind)s and c.name = %(name)s and c.version = %(version)s

-- name: latest_version
select c.version from custody.contract c
 where c.kind = %(kind)s and c.name = %(name)s order by c.published_seq desc limit 1

-- ================================================================ migrations

-- name: try_migration_lock
select pg_try_advisory_lock(%(key)s) as got

-- name: migration_lock_holder
select a.pid, a.application_name
  from pg_locks k join pg_stat_activity a on a.pid = k.pid
 where k.locktype = 'advisory' and k.granted and k.objsubid = 1 and k.classid = %(high)s::oid
   and k.objid = %(low)s::oid and k.database = (select d.oid from pg_database d where d.datname = current_database())

-- name: migration_table
select to_regclass('custody.migration') is not null as there

-- name: applied_migrations
select m.number, m.name, m.sha256, m.applied_at from custody.migration m order by m.number

-- name: record_migration
insert into custody.migration (number, name, sha256) values (%(number)s, %(name)s, %(sha256)s)

-- ================================================================ what people ask (DESIGN 16)

-- name: list_runs
-- Newest first; `before` is the run_id that the page before ended with.
select r.run_id, r.session_id, r.tenant, r.route_id, r.pinned_at, r.expires_at, r.lane_id, c.status, c.loop_step,
       c.park_reason, c.stop_requested, c.last_tool, c.wake_at, c.not_after, c.updated_at
  from custody.run r join custody.checkpoint c on c.run_id = r.run_id
 where (%(status)s::text is null or c.status = %(status)s)
   and (%(route_id)s::text is null or r.route_id = %(route_id)s)
   and (%(session_id)s::text is null or r.session_id = %(session_id)s)
   and (%(before)s::text is null or (r.pinned_at, r.run_id) <
        (select b.pinned_at, b.run_id from custody.run b where b.run_id = %(before)s))
 order by r.pinned_at desc, r.run_id desc limit %(limit)s

-- name: get_run
select v.run_id, v.correlation_id, v.session_id, v.status, v.pinned_at, v.expires_at, v.pin::text as pin,
       v.checkpoint::text as checkpoint, v.tenant, v.subject_id, v.subject_tenant, v.lane_id, v.updated_at,
       r.subject_actor, r.decision_id, r.parent, r.forked_from, c.park_reason, c.stop_requested, c.wake_at, c.pending,
       c.not_after, c.call_running, c.doubt_seq, c.stage, c.attempts, c.suspect_count, c.head_seq
  from custody.runs v join custody.run r on r.run_id = v.run_id join custody.checkpoint c on c.run_id = v.run_id
 where v.run_id = %(run_id)s

-- name: steps
select s.event_seq, s.kind, s.loop_step, s.lane_id, s.lane_seq, s.recorded_at, s.causation_id, s.schema_fingerprint,
       s.body, s.hash, s.signature is not null as signed, s.salt is null as erased
  from custody.step s where s.run_id = %(run_id)s order by s.event_seq

-- name: run_lane
select l.lane_id, l.topic, l.partition, l.owner, l.epoch, l.last_alive, l.went_back, l.unclean_ends, l.adopted_by,
       l.next_seq - 1 - l.published_seq as backlog, custody.now() as now
  from custody.lane l where l.lane_id = %(lane_id)s

-- name: run_signals
select s.signal_id, s.kind, s.source, s.created_at, s.causation_id, s.bound
  from custody.signal s where s.run_id = %(run_id)s and s.consumed_at is null order by s.signal_id

-- name: list_lanes
select l.lane_id, l.cluster_id, l.topic, l.partition, l.topic_id, l.epoch, l.owner, l.adopted_by, l.last_alive,
       l.input_offset, l.next_seq, l.published_seq, l.next_seq - 1 - l.published_seq as backlog,
       (select min(s.recorded_at) from custody.step s
         where s.lane_id = l.lane_id and s.lane_seq = l.published_seq + 1) as oldest_unpublished_at,
       l.cursor_partition, l.cursor_offset, l.unclean_ends, l.went_back, l.adopted_seq, l.adopted_at, l.adopted_reason
  from custody.lane l order by l.cluster_id, l.topic, l.partition

-- name: list_dead_letters
-- Never their content.
select d.dead_letter_id, d.reason, d.detail, l.topic, l.partition, d.record_offset as offset, d.topic_id, d.run_id,
       d.recorded_at, d.record_timestamp, octet_length(d.value) as bytes, d.lane_id, d.lane_seq,
       d.lane_seq <= l.published_seq as published
  from custody.dead_letter d join custody.lane l on l.lane_id = d.lane_id
 where (%(reason)s::text is null or d.reason = %(reason)s) and (%(run_id)s::text is null or d.run_id = %(run_id)s)
   and (%(lane_id)s::int8 is null or d.lane_id = %(lane_id)s)
 order by d.recorded_at desc, d.lane_id, d.lane_seq desc limit %(limit)s

-- name: live_counts
-- For metrics: statuses of runs that have not ended, from partial indexes; those that ended would be a scan.
select c.status, count(*) as runs from custody.checkpoint c
 where c.status in ('queued', 'running', 'waiting', 'parked') group by c.status
union all
select 'in_doubt', count(*) from custody.checkpoint c where c.status = 'in_doubt' having count(*) > 0

-- name: backlog
select l.lane_id, l.topic, l.partition, l.owner is not null as owned, l.next_seq - 1 - l.published_seq as unpublished,
       extract(epoch from custody.now() - (select min(s.recorded_at) from custody.step s
          where s.lane_id = l.lane_id and s.lane_seq = l.published_seq + 1))::float8 as oldest_s,
       exists (select from custody.checkpoint c where c.lane_id = l.lane_id
                and c.status in ('queued', 'running', 'waiting', 'parked')) as has_work
  from custody.lane l

-- name: progress
select (select coalesce(json_object_agg(x.status, x.n), '{}') from
         (select c.status, count(*) as n from custody.checkpoint c group by c.status) x) as by_status,
       array(select c.run_id from custody.checkpoint c where c.status = 'running' and c.head_seq > 1) as mid_loop,
       array(select c.pending from custody.checkpoint c where c.pending is not null) as pending,
       (select coalesce(sum(l.next_seq - 1 - l.published_seq), 0)::int8 from custody.lane l) as unpublished

-- name: first_steps_after
select s.run_id, min(s.recorded_at) as recorded_at from custody.step s
 where s.run_id = any(%(run_ids)s::text[]) and s.recorded_at > %(moment)s group by s.run_id

-- name: record_deployment
insert into custody.deployment (cluster_id, group_id, topics)
values (%(cluster_id)s, %(group_id)s, %(topics)s) on conflict (one) do nothing

-- name: deployment
select d.cluster_id, d.group_id, d.topics from custody.deployment d

-- ================================================================ the orphan sweep (DESIGN 5)

-- name: bind_late
-- A resume and its start, admitted at once on two lanes, may have missed each other: bind what has a run by now.
update custody.signal s set bound = true
 where s.consumed_at is null and not s.bound and exists (select from custody.run r where r.run_id = s.run_id)

-- name: held_too_long
select s.signal_id, s.run_id, s.topic_id, s.record_offset, s.raw_key, s.raw_value, s.raw_headers, s.recorded_at
  from custody.signal s
 where s.lane_id = %(lane_id)s and s.consumed_at is null and not s.bound
   and coalesce(s.recorded_at, s.created_at) < custody.now() - make_interval(secs => %(hold_s)s)
 order by s.signal_id limit %(limit)s

-- name: sweep_orphans
-- Fenced. `not bound` is checked on the newest row, which "no such run" would not be.
with t as materialized (select custody.now() as now),
lk as materialized (
  select l.lane_id, l.next_seq, l.went_back, %(last_seen)s >= l.next_seq as back
    from custody.lane l where l.lane_id = %(lane_id)s and l.owner = %(owner)s for no key update),
d as (
  select x.signal_id, x.dead_letter_id, x.hash, x.detail
    from unnest(%(signal_ids)s::int8[], %(dead_letter_ids)s::uuid[], %(hashes)s::bytea[], %(details)s::text[])
      x(signal_id, dead_letter_id, hash, detail)),
eaten as (
  update custody.signal s set consumed_at = t.now from d cross join lk cross join t
   where s.signal_id = d.signal_id and s.consumed_at is null and not s.bound
  returning s.signal_id, s.run_id, s.topic_id, s.record_offset, s.raw_key, s.raw_value, s.raw_headers, s.recorded_at,
            d.dead_letter_id, d.hash, d.detail),
num as (
  select e.*, row_number() over (order by e.signal_id) - 1 as off from eaten e),
ins as (
  insert into custody.dead_letter (dead_letter_id, lane_id, lane_seq, topic_id, record_offset, reason, detail, key,
      value, headers, hash, run_id, recorded_at, record_timestamp)
  select num.dead_letter_id, lk.lane_id, lk.next_seq + num.off, num.topic_id, num.record_offset, 'orphan_resume',
         num.detail, num.raw_key, num.raw_value, num.raw_headers, num.hash, num.run_id, t.now, num.recorded_at
    from num cross join lk cross join t),
mv as (
  update custody.lane l set next_seq = l.next_seq + (select count(*) from num), went_back = l.went_back or lk.back
    from lk where l.lane_id = lk.lane_id)
select lk.next_seq, lk.went_back or lk.back as went_back, (select count(*) from num) as swept from lk
