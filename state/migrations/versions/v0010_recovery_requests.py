"""What an operator accepts so that a failed pipeline goes on."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    for name in ("from_watermark", "skip_to"):
        op.add_column("pipelines", sa.Column(name, sa.String(64)))
