package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Client reads a spool through its AdminHandler. Get makes the call, and owns what its failing means.
type Client struct {
	Get func(ctx context.Context, method, path string) (io.ReadCloser, error)
}

// Attempts lists what is held, kept ones included.
func (c *Client) Attempts(ctx context.Context) (list []AttemptInfo, err error) {
	return list, c.json(ctx, "attempts", &list)
}

// Stats returns the counters.
func (c *Client) Stats(ctx context.Context) (st Stats, err error) {
	return st, c.json(ctx, "stats", &st)
}

func (c *Client) json(ctx context.Context, path string, into any) (err error) {
	body, err := c.Get(ctx, http.MethodGet, AdminPath+path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("spool: answer was cut: %w", err)
	}
	return nil
}

// Batches is as Reader's.
func (c *Client) Batches(ctx context.Context, id string, from int64) iter.Seq2[Batch, error] {
	query := url.Values{"attempt": {id}, "from": {strconv.FormatInt(from, 10)}}
	return func(yield func(Batch, error) bool) {
		for f, err := range c.frames(ctx, AdminPath+"batches?"+query.Encode()) {
			if err == nil {
				err = f.err
			}
			if !yield(f.batch, err) {
				return
			}
		}
	}
}

// DeadLetters is as Reader's.
func (c *Client) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		var letter *DeadLetter
		for f, err := range c.frames(ctx, AdminPath+"dead") {
			if err == nil {
				err = f.err
			}
			if f.dead != nil {
				letter = f.dead
				continue
			}
			d := DeadLetter{Batch: f.batch}
			if letter != nil {
				d = *letter
				d.Batch = f.batch
				letter = nil
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

func (c *Client) frames(ctx context.Context, path string) iter.Seq2[streamFrame, error] {
	return func(yield func(streamFrame, error) bool) {
		body, err := c.Get(ctx, http.MethodGet, path)
		if err != nil {
			yield(streamFrame{}, err)
			return
		}
		defer body.Close()
		for {
			f, err := readFrame(body)
			if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// Remove gives an attempt's batches up.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.remove(ctx, "attempts?"+url.Values{"attempt": {id}}.Encode())
}

// RemoveDead deletes a dead letter.
func (c *Client) RemoveDead(ctx context.Context, id string) error {
	return c.remove(ctx, "dead?"+url.Values{"id": {id}}.Encode())
}

func (c *Client) remove(ctx context.Context, path string) error {
	body, err := c.Get(ctx, http.MethodDelete, AdminPath+path)
	if err != nil {
		return err
	}
	return body.Close()
}
