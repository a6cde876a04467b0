package spool

const crashEnv = "AGENTD_SPOOL_CRASH"

func crashChild() {}
