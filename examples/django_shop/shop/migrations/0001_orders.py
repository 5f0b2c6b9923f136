"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("email", models.EmailField(max_length=254)),
                ("amount", models.PositiveIntegerField()),
                ("confirmation", models.CharField(default="", max_length=64)),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("packed", models.BooleanField(default=False)),
            ],
        ),
    )
