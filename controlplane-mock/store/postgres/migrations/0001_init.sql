create table meta (
    key   text primary key,
    value bytea not null
);

-- What changes of a job. The row is narrow, and nothing that a renewal writes is indexed: a renewal is then a new
-- version in the same page (HOT), and costs no index anything. What never changes is in specs.
create table jobs (
    seq         bigint generated always as identity primary key,
    id          text not null unique,
    type        text not null,
    agent_id    text not null,               -- pinned to; '' = any
    labels      jsonb not null,              -- that the agent must all have
    idem        text unique,                 -- null = none
    body_sum    bytea not null,
    created_at  timestamptz not null default clock_timestamp(),
    grace       bigint not null,             -- microseconds
    version     bigint not null default 0,   -- counts changes of state, renewals left out: what a write compares
    status      text not null,
    pending_at  timestamptz not null default clock_timestamp(), -- when it last became pending
    state       bytea not null,              -- rules.State as JSON, without the attempt that isn't over
    last        bigint not null default 0,   -- the number of the newest attempt
    cancel      text,                        -- the reason, once asked for
    run_by      text[] not null default '{}', -- agents that accepted it
    -- The attempt that isn't over, number last; all null = there is none.
    live_agent  text,
    live_poll   text,
    offered_at  timestamptz,
    started_at  timestamptz,
    lease_until timestamptz,
    lease_ttl   interval,                    -- what was last added to the time of then
    log_records bigint,
    spooled     bigint not null default 0
) with (fillfactor = 70);
-- Leasing reads the first of these for a poll of one type, the second for a poll of several.
create index jobs_pending_type on jobs (type, seq) where status = 'pending';
create index jobs_pending on jobs (seq, type) where status = 'pending';
create index jobs_pending_at on jobs (pending_at) where status = 'pending';
create index jobs_live on jobs (seq) where live_agent is not null;
create index jobs_status on jobs (status, seq);
-- A poll that comes in twice at once, on two instances, gets one offer.
create unique index jobs_offers on jobs (live_agent, live_poll) where status = 'offered';

create table specs (
    job_id  text primary key,
    spec    bytea not null,                  -- store.NewJob as JSON
    payload bytea not null
);

create table results (
    job_id  text not null,
    attempt bigint not null,
    result  bytea not null,
    primary key (job_id, attempt)
);

-- Where each attempt's log ends. A batch is appended by moving next from the batch's first number to its last.
create table log_tails (
    job_id  text not null,
    attempt bigint not null,
    prev    bigint not null,                 -- next as it was before the last batch
    next    bigint not null,
    primary key (job_id, attempt)
) with (fillfactor = 70);

-- One partition a day (UTC), so that old ones go by dropping a table.
create table logs (
    job_id   text not null,
    attempt  bigint not null,
    last     bigint not null,                -- the number after the batch's last record
    first    bigint not null,
    decoded  bigint not null,
    encoding text not null,
    packed   boolean not null,               -- the body came plain and was compressed (zstd) by the store
    received timestamptz not null,
    body     bytea not null,
    primary key (job_id, attempt, last, received)
) partition by range (received);

create table agents (
    seq        bigint generated always as identity unique,
    id         text primary key,
    doc        bytea not null,
    public_key bytea not null unique,
    changed_at timestamptz not null default clock_timestamp(),
    last_seen  timestamptz not null default clock_timestamp()
) with (fillfactor = 70);
create index agents_changed on agents (changed_at);

create table api_keys (
    sum        bytea primary key,
    agent_id   text not null references agents (id),
    process_id text not null,
    expires    timestamptz not null
);
create index api_keys_agent on api_keys (agent_id, expires);

create table enrolments (
    sum     bytea primary key,
    doc     bytea not null,
    expires timestamptz not null
);
create index enrolments_expires on enrolments (expires);

create table nonces (
    sum        bytea primary key,
    public_key bytea not null,
    expires    timestamptz not null
);
create index nonces_expires on nonces (expires);
