"""The page that a pipeline's process shows: files for a browser, served by slackwater.http."""
