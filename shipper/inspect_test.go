package shipper

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentd/agent/protocol"
)

func TestInspectQueueShowsWhatWillShip(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		v.away()
		r := start(t, v, config(t, v))
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 500))
		time.Sleep(time.Second)
		if err := l.write(streamOut, []byte(numbered(501, 510)+"not ended")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before, err := os.ReadFile(r.cfg.QueueFile)
		if err != nil {
			t.Fatal(err)
		}
		logs, err := InspectQueue(r.cfg.QueueFile)
		if err != nil || len(logs) != 1 || logs[0].Ref != ref("a") || logs[0].Next != 511 {
			t.Fatalf("%+v, %v; want a with 511 records", logs, err)
		}
		var text strings.Builder
		next := int64(0)
		for _, b := range logs[0].Batches {
			if b.First != next {
				t.Errorf("a batch begins at %d, want %d", b.First, next)
			}
			next = b.First + b.Count
			for line := range bytes.Lines(b.Text) {
				rec, err := protocol.ParseRecord(line)
				if err != nil {
					t.Fatal(err)
				}
				text.WriteString(rec.Text)
				if !rec.EOF {
					text.WriteByte('\n')
				}
			}
		}
		if want := numbered(1, 510) + "not ended"; text.String() != want {
			t.Errorf("shows %s, want %s", brief(text.String()), brief(want))
		}
		after, err := os.ReadFile(r.cfg.QueueFile)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("the file has changed: %v", err)
		}
	})
}

func TestCollectorExportsTheInvariant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 100))
		l.Close()
		r.flush()
		reg := prometheus.NewPedanticRegistry()
		if err := reg.Register(r.Collector()); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		for name, want := range map[string]float64{
			"agentd_log_records_accepted_total": 100, "agentd_log_records_acked_total": 100, "agentd_log_records_memory": 0,
			"agentd_log_records_spool": 0, "agentd_log_records_dead_total": 0, "agentd_log_queue_used_bytes": 0, "agentd_log_queue_size_bytes": 1 << 20,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
			}
		}
	})
}
