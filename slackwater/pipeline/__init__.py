"""One pipeline in a process: owned, started, paused, drained, tried again.

Here stands what happens around an epoch: who runs the pipeline, when, and what a failure means.
What an epoch is, and which task reads what, is the scheduler's; how records are written is the
sink's; what is shown of it all is monitoring's. Only spark/ calls Spark's JVM.

Which module decides what:

- what follows from a state, a request and an event: transitions (the table), asked by run_loop and
  query_runner through lifecycle
- that a failed pipeline is tried again: transitions (RunMode.failed, RunMode.is_last_try), of what
  failures.diagnose says; failures.delay_s says when
- that an epoch may become visible: epochs.writer (EpochWriter.write), which asks lease_holder and
  epochs.audit
- that an epoch counts as committed: Spark's commit log; epochs.recorder sees and records it
- who owns the pipeline: lease_holder, by the rules of slackwater.state.lease
- what an operator or a signal desires: desired_state
- where a pipeline resumes: resume_point, with source and recovery
- what is put together from the settings: supervisor
"""
