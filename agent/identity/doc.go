// Package identity keeps who an agent is: an Ed25519 key pair and an agent id on disk, an API
// key in memory. It links, proves itself again, renews, and says in words how it stands.
//
// What it promises: the same agent id, whatever its API key. A key that ran out, was lost or is
// refused is replaced by proof of possession of the key pair; no person is needed, no restart,
// and nothing that the agent holds is given up meanwhile.
//
//	              token                    proof, at 75 % of the key's life, and when a key is refused
//	unlinked ───────────────► linked ◄──────────────────────────────────────────────► linked
//	   │ 401                    │ 401: refused, asks every 5 min or when the token changes
//	   ▼                        │ 403: revoked, asks every 5 min
//	refused                     └ 409: identity conflict, stops asking for work until a person decides
//
// On disk: identity.json in the state directory, 0600, replaced as a whole (temporary file,
// fsync, rename, fsync of the directory). It is written before the server hears of a key pair,
// so no answer that is lost, and no crash, costs an identity: the same token and the same key
// pair once more give the same agent id. identity.json.new holds the key pair of a forced link
// until the server has taken it; the old one stands until then.
//
// The API key is not stored. A proof replaces it at any time, every start links anyway, and
// what isn't on disk can't be read from a backup.
//
// Not defended: whoever can read the state directory is the agent (docs/security.md). The
// server notices two processes with one identity and refuses one; see Conflict.
package identity
