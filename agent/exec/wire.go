package exec

// The agent and the shim talk JSON values over a socket pair. The socket is also the leash: when the agent's end
// closes, for whatever reason, the shim kills the job's tree and exits.

// shimName is argv[0] of a shim: Main knows by it that it is one. Nobody's program has this name by accident.
const shimName = "agentd-job-shim"

// What the shim finds open besides the job's stdin, stdout and stderr.
const (
	controlFD = 3
	cgroupFD  = 4 // only when startOrder.Cgroup is set
)

// order is what the agent wants of the shim: exactly one of the fields.
type order struct {
	Start  *startOrder `json:"start,omitempty"`
	Signal int         `json:"signal,omitempty"` // to every process of the tree
	Kill   bool        `json:"kill,omitempty"`   // until none is left
}

type startOrder struct {
	Path        string      `json:"path"`
	Args        []string    `json:"args"`
	Env         []string    `json:"env"`
	Dir         string      `json:"dir"`
	Credential  *credential `json:"credential,omitempty"`
	OOMScoreAdj int         `json:"oomScoreAdj"`
	Cgroup      string      `json:"cgroup,omitempty"` // its directory, open as cgroupFD
	CoreLimit   uint64      `json:"coreLimit,omitempty"`
}

type credential struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"`
}

// report is what the shim has seen: exactly one of the fields.
type report struct {
	Started int     `json:"started,omitempty"` // pid of the main process
	Failed  *failed `json:"failed,omitempty"`  // it could not be started
	Exited  *exited `json:"exited,omitempty"`  // the main process
	Empty   bool    `json:"empty,omitempty"`   // no process of the tree is left; the last report
}

type failed struct {
	Errno int    `json:"errno"`
	Error string `json:"error"`
}

type exited struct {
	Code   int `json:"code"`
	Signal int `json:"signal"`
}
