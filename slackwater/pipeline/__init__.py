"""One pipeline in a process: owned, started, paused, drained, tried again.

This package has everything around an epoch: the pipeline's owner, its life, and its failures. The
scheduler decides what an epoch is and which task reads what; the sink, how records are written;
monitoring, what is shown. Only spark/ calls Spark's JVM.

Which module decides what:

- what follows from a state, a request and an event: transitions (the table), which run_loop and
  query_runner use through lifecycle
- that a failed pipeline is tried again: query_runner for the query (QueryRunner.run), initial_scan
  for the scan, both by failures.diagnose and RunMode.is_last_try; RunMode.failed for the rest, such
  as a failure to start; failures.delay_s says when
- that an epoch may become visible: epochs.writer (EpochWriter.write), which asks lease_holder, and
  epochs.audit (a broken promise stops the epoch, unless epoch.audit is log)
- that an epoch counts as committed: Spark's commit log; epochs.recorder sees and records it
- who owns the pipeline: lease_holder, by the rules of slackwater.state.lease; it also takes the
  lease of a process of the same process-id namespace that has died (owner_is_dead)
- what an operator or a signal desires: desired_state
- the time that a long work still takes: progress
- whether it keeps up, and at which level: catch_up; when that is logged: alerts
- where a pipeline resumes: resume_point, with source and recovery
- the assembly of all parts from the settings: supervisor
"""
