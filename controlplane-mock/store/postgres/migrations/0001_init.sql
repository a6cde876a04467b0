create table meta (
    key   text primary key,
    value bytea not null
);

-- spec and state are JSON documents as the server wrote them; the other columns repeat what
-- statements select by.
create table jobs (
    seq          bigint generated always as identity unique,
    id           text primary key,
    type         text not null,
    agent_id     text not null,              -- pinned to; '' = any
    labels       jsonb not null,             -- that the agent must all have
    idem         text unique,                -- null = none
    body_sum     bytea not null,
    spec         bytea not null,
    payload      bytea not null,
    created_at   timestamptz not null,
    state        bytea not null,
    status       text not null,
    run_by       text[] not null default '{}', -- agents that accepted it
    live_attempt bigint,                     -- of the attempt that isn't over: null = none
    live_agent   text,
    live_poll    text,
    lease_until  timestamptz,
    spooled      bigint not null default 0,
    cancel       text                        -- the reason, once asked for
);
create index jobs_pending on jobs (type, seq) where status = 'pending';
create index jobs_status on jobs (status, seq);
create index jobs_live on jobs (lease_until) where live_attempt is not null;
create index jobs_offers on jobs (live_agent, live_poll) where status = 'offered';

create table results (
    job_id  text not null,
    attempt bigint not null,
    result  bytea not null,
    primary key (job_id, attempt)
);

create table logs (
    job_id   text not null,
    attempt  bigint not null,
    last     bigint not null,                -- the number after the batch's last record
    first    bigint not null,
    decoded  bigint not null,
    encoding text not null,
    received timestamptz not null,
    body     bytea not null,
    primary key (job_id, attempt, last)
);
-- Bodies come compressed: trying to compress them again only costs.
alter table logs alter column body set storage external;

create table log_tails (
    job_id  text not null,
    attempt bigint not null,
    next    bigint not null,
    primary key (job_id, attempt)
);

create table agents (
    seq        bigint generated always as identity unique,
    id         text primary key,
    doc        bytea not null,
    public_key bytea not null unique,
    last_seen  timestamptz not null
);

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
