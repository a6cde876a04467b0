package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

const (
	// daysAhead is how many days' partitions exist beforehand: instances that are all too busy, or not permitted, to make
	// one have a week to notice.
	daysAhead = 7
	// upkeepEvery is how often partitions are looked after.
	upkeepEvery = 10 * time.Minute

	partitionPrefix = "logs_"
	partitionDay    = "20060102"
)

// partition makes the partitions of the days to come and drops those whose time is over.
func (s *Store) partition(ctx context.Context) error {
	now, have, err := partitions(ctx, s.pool)
	if err != nil {
		return err
	}
	var missing, old []time.Time
	for i := range daysAhead + 1 {
		if day := now.Truncate(24*time.Hour).AddDate(0, 0, i); !slices.ContainsFunc(have, day.Equal) {
			missing = append(missing, day)
		}
	}
	if s.cfg.KeepLogs > 0 {
		for _, day := range have {
			if end := day.AddDate(0, 0, 1); !end.After(now.Add(-s.cfg.KeepLogs)) {
				old = append(old, day)
			}
		}
	}
	if len(missing) > 0 {
		if err := s.alterTables(ctx, func(tx pgx.Tx) error { return makePartitions(ctx, tx, missing) }); err != nil {
			return fmt.Errorf("make log partitions: %w", err)
		}
	}
	for _, day := range old {
		name := partitionPrefix + day.Format(partitionDay)
		err := s.alterTables(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "drop table if exists "+name)
			return err
		})
		if err != nil {
			return fmt.Errorf("drop log partition %s: %w", name, err)
		}
		s.log.Info("old logs dropped", zap.String("partition", name), zap.Duration("kept", s.cfg.KeepLogs))
	}
	return nil
}

// upkeep looks after the partitions until ctx ends.
func (s *Store) upkeep(ctx context.Context) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		once, cancel := context.WithTimeout(ctx, upkeepEvery/2) // whoever has the tables may take a while
		if err := s.partition(once); err != nil && ctx.Err() == nil {
			s.log.Error("log partitions not looked after", zap.Error(err))
		}
		cancel()
	}
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// partitions answers the database's time (UTC) and the days that have a partition.
func partitions(ctx context.Context, db querier) (now time.Time, have []time.Time, err error) {
	var names []string
	err = db.QueryRow(ctx, `select clock_timestamp(), array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = 'logs'::regclass)`).Scan(&now, &names)
	for _, name := range names {
		if day, err := time.Parse(partitionDay, strings.TrimPrefix(name, partitionPrefix)); err == nil {
			have = append(have, day)
		}
	}
	return now.UTC(), have, err
}

// makePartitions attaches tables that it made before: that doesn't keep others from using the log meanwhile.
func makePartitions(ctx context.Context, tx pgx.Tx, days []time.Time) error {
	_, have, err := partitions(ctx, tx)
	if err != nil {
		return err
	}
	for _, day := range days {
		if slices.ContainsFunc(have, day.Equal) { // another instance was faster
			continue
		}
		const bound = "2006-01-02 00:00:00+00"
		// Bodies come compressed: trying to compress them again only costs.
		_, err := tx.Exec(ctx, fmt.Sprintf(`create table %[1]s (like logs including all);
			alter table %[1]s alter column body set storage external;
			alter table logs attach partition %[1]s for values from ('%[2]s') to ('%[3]s')`,
			partitionPrefix+day.Format(partitionDay), day.Format(bound), day.AddDate(0, 0, 1).Format(bound)))
		if err != nil {
			return err
		}
	}
	return nil
}
